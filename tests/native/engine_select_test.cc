// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm is chosen, as a table, and what SMDDP_ALGORITHM may say.
#include <gtest/gtest.h>

#include "common/error.h"
#include "engine/select.h"
#include "transport/peer_memory.h"

namespace smd::engine {
namespace {

constexpr std::uint64_t kSlot = transport::kSlotBytes;

TEST(Select, Table) {
  struct Row {
    OpKind kind;
    std::uint64_t bytes;
    int size;
    bool sharesMemory;
    const char* overrides;
    Algorithm expected;
  };
  const std::vector<Row> rows = {
      {OpKind::kAllReduce, 8, 1, true, "", Algorithm::kAlone},
      {OpKind::kAllReduce, 8, 1, false, "all_reduce=direct", Algorithm::kAlone},
      {OpKind::kAllReduce, 8, 8, false, "", Algorithm::kDirect},
      {OpKind::kAllReduce, 8, 8, false, "all_reduce=staged", Algorithm::kDirect},
      {OpKind::kBarrier, 0, 8, false, "", Algorithm::kDirect},
      {OpKind::kAllReduce, 0, 8, true, "", Algorithm::kOneShot},
      {OpKind::kAllReduce, 1024, 64, true, "", Algorithm::kOneShot},
      {OpKind::kAllReduce, kSlot + 1, 2, true, "", Algorithm::kStaged},
      {OpKind::kAllReduce, std::uint64_t{1} << 30, 2, true, "", Algorithm::kStaged},
      {OpKind::kBroadcast, 100, 2, true, "", Algorithm::kOneShot},
      {OpKind::kAllGather, 100, 2, true, "", Algorithm::kOneShot},
      {OpKind::kReduceScatter, 100, 2, true, "", Algorithm::kOneShot},
      {OpKind::kBarrier, 0, 64, true, "", Algorithm::kOneShot},
      // Only some ranks know the sizes of these before the exchange.
      {OpKind::kAllToAll, 0, 2, true, "", Algorithm::kStaged},
      {OpKind::kGather, 8, 2, true, "", Algorithm::kStaged},
      {OpKind::kScatter, 8, 2, true, "all_to_all=one_shot,scatter=one_shot", Algorithm::kStaged},
      {OpKind::kAllReduce, 8, 2, true, "all_reduce=staged", Algorithm::kStaged},
      {OpKind::kAllReduce, kSlot, 64, true, "all_reduce=one_shot", Algorithm::kOneShot},
      {OpKind::kAllReduce, kSlot + 1, 2, true, "all_reduce=one_shot", Algorithm::kStaged},
      {OpKind::kAllReduce, 8, 2, true, "all_reduce=direct", Algorithm::kDirect},
      {OpKind::kBroadcast, 8, 2, true, "all_reduce=direct", Algorithm::kOneShot},
      {OpKind::kBroadcast, 8, 2, true, "all_reduce=direct,broadcast=staged", Algorithm::kStaged},
      {OpKind::kBarrier, 0, 2, true, "barrier=staged", Algorithm::kOneShot},
      {OpKind::kBarrier, 0, 2, true, "barrier=direct", Algorithm::kDirect},
  };
  for (const Row& row : rows) {
    const Choice choice =
        select(row.kind, row.bytes, {row.size, row.sharesMemory}, parseOverrides(row.overrides));
    EXPECT_EQ(choice.algorithm, row.expected)
        << smd::name(row.kind) << " of " << row.bytes << " bytes, " << row.size << " ranks, \""
        << row.overrides << "\": " << name(choice.algorithm) << ", " << choice.reason;
    EXPECT_NE(std::string(choice.reason), "");
  }
}

// Where buffers can be shared, whatever is too large for one exchange may find that they are.
TEST(Select, SharedBuffersAreForLargeOperations) {
  const Topology topology{.size = 2, .sharesMemory = true, .hasArenas = true};
  const auto algorithmOf = [&](OpKind kind, std::uint64_t bytes, const char* overrides) {
    return select(kind, bytes, topology, parseOverrides(overrides)).algorithm;
  };
  EXPECT_EQ(algorithmOf(OpKind::kAllReduce, 8, ""), Algorithm::kOneShot);
  EXPECT_EQ(algorithmOf(OpKind::kAllReduce, kSlot + 1, ""), Algorithm::kShared);
  for (OpKind kind :
       {OpKind::kReduce, OpKind::kBroadcast, OpKind::kAllGather, OpKind::kReduceScatter,
        OpKind::kAllToAll, OpKind::kGather, OpKind::kScatter}) {
    EXPECT_EQ(algorithmOf(kind, kSlot + 1, ""), Algorithm::kShared) << smd::name(kind);
  }
  EXPECT_EQ(algorithmOf(OpKind::kBroadcast, 8, ""), Algorithm::kOneShot);
  EXPECT_EQ(algorithmOf(OpKind::kAllToAll, 8, "all_to_all=staged"), Algorithm::kStaged);
  EXPECT_EQ(algorithmOf(OpKind::kAllReduce, 8, "all_reduce=shared"), Algorithm::kShared);
  EXPECT_EQ(algorithmOf(OpKind::kAllReduce, kSlot + 1, "all_reduce=staged"), Algorithm::kStaged);
  EXPECT_EQ(algorithmOf(OpKind::kBarrier, 0, "barrier=shared"), Algorithm::kOneShot);
  EXPECT_EQ(select(OpKind::kAllReduce, 8, {2, true}, parseOverrides("all_reduce=shared")).algorithm,
            Algorithm::kOneShot);
  EXPECT_EQ(select(OpKind::kAllReduce, kSlot + 1, {2, false}, parseOverrides("all_reduce=shared"))
                .algorithm,
            Algorithm::kDirect);
}

// Once a size is too large for one exchange, no larger one fits again.
TEST(Select, ChangesAtOneSizeOnly) {
  for (int size : {2, 3, 8, 64}) {
    bool wasStaged = false;
    for (std::uint64_t bytes = 0; bytes < 2 * kSlot; bytes += 8) {
      const bool isStaged =
          select(OpKind::kAllReduce, bytes, {size, true}, {}).algorithm == Algorithm::kStaged;
      ASSERT_TRUE(isStaged || !wasStaged) << size << " ranks, " << bytes << " bytes";
      wasStaged = isStaged;
    }
    EXPECT_TRUE(wasStaged);
  }
}

TEST(Overrides, AutoAndNothingAreNone) {
  EXPECT_TRUE(parseOverrides("").empty());
  EXPECT_TRUE(parseOverrides("auto").empty());
}

TEST(Overrides, WhatIsWrongIsNamedWithWhatThereIs) {
  const auto textOf = [](const std::string& value) -> std::string {
    try {
      parseOverrides(value);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(textOf("all_reduce").find("expected collective=algorithm"), std::string::npos);
  EXPECT_NE(textOf("allreduce=staged").find("expected one of barrier, all_reduce"),
            std::string::npos);
  EXPECT_NE(textOf("all_reduce=ring").find("expected one_shot, staged, shared or direct"),
            std::string::npos);
  EXPECT_NE(textOf("all_reduce=alone").find("\"alone\""), std::string::npos);
  EXPECT_NE(textOf("all_reduce=staged,").find("contains \"\""), std::string::npos);
}

}  // namespace
}  // namespace smd::engine
