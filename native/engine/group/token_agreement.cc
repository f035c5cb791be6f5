// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/token_agreement.h"

#include <algorithm>

#include "common/error.h"

namespace smd::engine {
namespace {

constexpr char kWithToken = 'T';
constexpr char kWithoutToken = 'S';
constexpr char kWithTls = 'E';
constexpr char kInTheClear = 'C';
constexpr std::size_t kNamedAtMost = 4;

// What most ranks published.
const std::string& commonMark(const std::vector<std::string>& marks) {
  const std::string* common = &marks[0];
  auto most = std::count(marks.begin(), marks.end(), marks[0]);
  for (const std::string& mark : marks) {
    if (const auto count = std::count(marks.begin(), marks.end(), mark); count > most) {
      common = &mark;
      most = count;
    }
  }
  return *common;
}

bool hasToken(std::string_view mark) { return mark.starts_with(kWithToken); }
bool usesTls(std::string_view mark) { return mark.ends_with(kWithTls); }

// Ranks in words, and how many they are.
struct Named {
  std::string text;
  std::size_t count = 0;

  void add(std::size_t rank, const hosts::Identity& identity) {
    if (count++ < kNamedAtMost) {
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (host " +
              identity.host + ", pid " + std::to_string(identity.pid) + ")";
    }
  }
  std::string toString() const {
    return count <= kNamedAtMost ? text
                                 : text + " and " + std::to_string(count - kNamedAtMost) + " more";
  }
};

}  // namespace

std::string tokenMark(const auth::SessionKey& key, bool usesTls) {
  std::string mark(1, key.level == auth::Level::kToken ? kWithToken : kWithoutToken);
  const auth::Digest shown = auth::fingerprint(key);
  mark.append(reinterpret_cast<const char*>(shown.data()), shown.size());
  return mark + (usesTls ? kWithTls : kInTheClear);
}

void requireOneToken(const std::vector<std::string>& marks,
                     const std::vector<hosts::Identity>& identities) {
  const std::string& common = commonMark(marks);
  const std::string_view commonToken = std::string_view(common).substr(0, common.size() - 1);
  Named strangers;
  Named otherTls;
  std::size_t strangersWithToken = 0;
  for (std::size_t rank = 0; rank < marks.size(); ++rank) {
    if (!marks[rank].starts_with(commonToken)) {
      strangers.add(rank, identities[rank]);
      strangersWithToken += hasToken(marks[rank]) ? 1 : 0;
    } else if (marks[rank] != common) {
      otherTls.add(rank, identities[rank]);
    }
  }
  if (strangers.count > 0) {
    const std::string does = strangers.count == 1 ? " does" : " do";
    const std::string has = strangers.count == 1 ? " has" : " have";
    std::string text = strangers.toString();
    if (!hasToken(common)) {
      text += has + " a job token (SMDDP_TOKEN), the other ranks have none";
    } else if (strangersWithToken == 0) {
      text += does + " not know the job's token:" + has + " none";
    } else {
      text += does + " not know the job's token: the other ranks have another one";
    }
    throw Error(ErrorKind::kConfiguration,
                text +
                    "; expected the same on all ranks. Start all ranks with the same SMDDP_TOKEN, "
                    "or a SMDDP_TOKEN_FILE of the same content, or all without; and look whether "
                    "ranks of two jobs have met at one MASTER_ADDR and MASTER_PORT.");
  }
  if (otherTls.count > 0) {
    const char* const theirs =
        usesTls(common) ? " no TLS, the other ranks do" : " TLS, the other ranks do not";
    throw Error(ErrorKind::kConfiguration,
                otherTls.toString() + (otherTls.count == 1 ? " uses" : " use") + theirs +
                    "; expected it on all ranks or on none. Set SMDDP_TLS_CERT, SMDDP_TLS_KEY and "
                    "SMDDP_TLS_CA on all hosts, or unset them everywhere.");
  }
}

}  // namespace smd::engine
