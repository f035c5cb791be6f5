// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Who is named when ranks have different job tokens, by table.
#include "engine/group/token_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/error.h"

namespace smd::engine {
namespace {

std::string errorFor(const std::vector<std::string>& tokens,
                     const std::vector<std::size_t>& withTls = {}) {
  std::vector<std::string> marks;
  std::vector<hosts::Identity> identities;
  for (const std::string& token : tokens) {
    marks.push_back(tokenMark(auth::deriveSessionKey(token, auth::SessionId{}),
                              std::count(withTls.begin(), withTls.end(), marks.size()) > 0));
    hosts::Identity identity;
    identity.host = "host" + std::to_string(identities.size());
    identity.pid = 100;
    identities.push_back(identity);
  }
  try {
    requireOneToken(marks, identities);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
    return error.what();
  }
  return "";
}

TEST(TokenAgreement, IsQuietWhereAllAgree) {
  EXPECT_EQ(errorFor({"a", "a", "a"}), "");
  EXPECT_EQ(errorFor({"", ""}), "");
}

TEST(TokenAgreement, NamesWhoDiffers) {
  struct Case {
    std::vector<std::string> tokens;
    const char* beginning;
  };
  for (const Case& each : {
           Case{{"a", "a", "b", "a"},
                "rank 2 (host host2, pid 100) does not know the job's token: the other ranks have "
                "another one; expected the same on all ranks. Start all ranks with the same "
                "SMDDP_TOKEN"},
           Case{{"b", "a", "a"}, "rank 0 (host host0, pid 100) does not know the job's token"},
           Case{{"a", "b"}, "rank 1 (host host1, pid 100) does not know"},
           Case{{"a", "", "a"},
                "rank 1 (host host1, pid 100) does not know the job's token: has none;"},
           Case{{"a", "", ""},
                "rank 0 (host host0, pid 100) has a job token (SMDDP_TOKEN), the "
                "other ranks have none;"},
           Case{{"a", "a", "a", "b", "c"},
                "rank 3 (host host3, pid 100), rank 4 (host host4, pid "
                "100) do not know"},
       }) {
    EXPECT_EQ(errorFor(each.tokens).rfind(each.beginning, 0), 0U) << errorFor(each.tokens);
  }
}

TEST(TokenAgreement, NamesWhoUsesTlsAloneOrNot) {
  EXPECT_EQ(errorFor({"a", "a"}, {0, 1}), "");
  EXPECT_EQ(
      errorFor({"a", "a", "a"}, {1})
          .rfind("rank 1 (host host1, pid 100) uses TLS, the other ranks do not; expected", 0),
      0U);
  EXPECT_EQ(errorFor({"a", "a", "a"}, {0, 2})
                .rfind("rank 1 (host host1, pid 100) uses no TLS, the other ranks do; expected", 0),
            0U);
  // The token comes first: who has another one is no rank of this job.
  EXPECT_NE(errorFor({"a", "b", "a"}, {1}).find("does not know"), std::string::npos);
}

TEST(TokenAgreement, NamesNoMoreThanAPersonReads) {
  std::vector<std::string> tokens(20, "a");
  for (std::size_t i = 10; i < 19; ++i) tokens[i] = "b";
  EXPECT_NE(errorFor(tokens).find("rank 13 (host host13, pid 100) and 5 more do not know"),
            std::string::npos)
      << errorFor(tokens);
}

}  // namespace
}  // namespace smd::engine
