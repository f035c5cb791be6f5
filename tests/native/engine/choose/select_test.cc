// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm is chosen, as a table, and what SMDDP_ALGORITHM may say.
#include <gtest/gtest.h>

#include "common/error.h"
#include "engine/choose/select.h"
#include "transport/peer_memory.h"

namespace smd::engine {
namespace {

constexpr std::uint64_t kSlot = transport::kSlotBytes;

// Of ranks that either share one host or have one each.
Topology topologyOf(int size, bool sharesMemory) {
  Topology topology;
  topology.size = size;
  topology.sharesMemory = sharesMemory;
  topology.hosts = sharesMemory ? 1 : size;
  return topology;
}

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
      {OpKind::kAllReduce, 8, 8, false, "", Algorithm::kHierarchical},
      {OpKind::kAllReduce, 8, 8, false, "all_reduce=staged", Algorithm::kHierarchical},
      {OpKind::kAllReduce, 8, 8, false, "all_reduce=direct", Algorithm::kHierarchical},
      {OpKind::kReduce, 1 << 20, 8, false, "", Algorithm::kHierarchical},
      {OpKind::kBroadcast, 8, 8, false, "", Algorithm::kHierarchical},
      // A host each: every pair has to exchange something anyway.
      {OpKind::kAllGather, 8, 8, false, "", Algorithm::kDirect},
      {OpKind::kReduceScatter, 8, 8, false, "", Algorithm::kDirect},
      {OpKind::kAllToAll, 8, 8, false, "", Algorithm::kDirect},
      {OpKind::kBarrier, 0, 8, false, "", Algorithm::kHierarchical},
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
      {OpKind::kAllReduce, 8, 2, true, "all_reduce=direct", Algorithm::kOneShot},
      {OpKind::kAllToAll, 8, 2, true, "all_to_all=direct", Algorithm::kStaged},
      {OpKind::kBroadcast, 8, 2, true, "all_reduce=staged", Algorithm::kOneShot},
      {OpKind::kBroadcast, 8, 2, true, "all_reduce=one_shot,broadcast=staged", Algorithm::kStaged},
      {OpKind::kBarrier, 0, 2, true, "barrier=staged", Algorithm::kOneShot},
  };
  for (const Row& row : rows) {
    const Choice choice = select(row.kind, row.bytes, topologyOf(row.size, row.sharesMemory),
                                 parseOverrides(row.overrides));
    EXPECT_EQ(choice.algorithm, row.expected)
        << smd::name(row.kind) << " of " << row.bytes << " bytes, " << row.size << " ranks, \""
        << row.overrides << "\": " << name(choice.algorithm) << ", " << choice.reason;
    EXPECT_NE(std::string(choice.reason), "");
  }
}

// Where buffers can be shared, whatever is too large for one exchange may find that they are.
TEST(Select, SharedBuffersAreForLargeOperations) {
  Topology topology = topologyOf(2, true);
  topology.hasArenas = true;
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
  EXPECT_EQ(select(OpKind::kAllReduce, 8, topologyOf(2, true), parseOverrides("all_reduce=shared"))
                .algorithm,
            Algorithm::kOneShot);
  EXPECT_EQ(select(OpKind::kAllReduce, kSlot + 1, topologyOf(2, false),
                   parseOverrides("all_reduce=shared"))
                .algorithm,
            Algorithm::kHierarchical);
}

TEST(Select, WhatIsRoundedOnceIsCombinedInOneStep) {
  Topology topology = topologyOf(4, false);
  Choice choice = select(OpKind::kAllReduce, 1 << 20, topology, {}, true);
  EXPECT_EQ(choice.algorithm, Algorithm::kHierarchical);
  EXPECT_EQ(choice.pattern, step_tables::Pattern::kDirect);
  EXPECT_EQ(select(OpKind::kReduceScatter, 1 << 20, topology, {}, true).algorithm,
            Algorithm::kDirect);
  topology.hosts = 2;
  topology.ranksPerHost = 2;
  EXPECT_EQ(select(OpKind::kReduceScatter, 1 << 20, topology, {}, true).algorithm,
            Algorithm::kHierarchical);
  topology.hosts = 1024;
  EXPECT_EQ(select(OpKind::kAllReduce, 64 << 20, topology, {}, false).pattern,
            step_tables::Pattern::kHalvingDoubling);
  EXPECT_EQ(select(OpKind::kAllReduce, 64 << 20, topology, {}, true).pattern,
            step_tables::Pattern::kDirect);
  EXPECT_EQ(select(OpKind::kAllReduce, 64 << 20, topology,
                   parseOverrides("all_reduce=hierarchical/ring"), true)
                .pattern,
            step_tables::Pattern::kDirect)
      << "would round parts";
  topology.hosts = 2;
  EXPECT_EQ(select(OpKind::kAllReduce, 1 << 20, topology, {}, false).algorithm,
            Algorithm::kHierarchical);
}

// The figures are those of the cost model's default link.
TEST(Select, PatternsBetweenHosts) {
  using step_tables::Pattern;
  const auto patternOf = [](std::uint64_t bytes, int hosts, int ranksPerHost,
                            const char* overrides = "", bool isFixedOrder = false) {
    Topology topology = topologyOf(hosts * ranksPerHost, false);
    topology.hosts = hosts;
    topology.ranksPerHost = ranksPerHost;
    topology.isFixedOrder = isFixedOrder;
    return select(OpKind::kAllReduce, bytes, topology, parseOverrides(overrides)).pattern;
  };
  EXPECT_EQ(patternOf(8, 2, 1), Pattern::kExchange);
  EXPECT_EQ(patternOf(8, 4, 8), Pattern::kExchange);
  EXPECT_EQ(patternOf(64 << 20, 2, 2), Pattern::kDirect);
  EXPECT_EQ(patternOf(64 << 20, 8, 1), Pattern::kDirect);
  EXPECT_EQ(patternOf(8, 256, 8), Pattern::kDoubling);
  EXPECT_EQ(patternOf(64 << 20, 1024, 8), Pattern::kHalvingDoubling);
  EXPECT_EQ(patternOf(std::uint64_t{4} << 30, 1000, 8), Pattern::kRing) << "no power of two";
  EXPECT_EQ(patternOf(8, 256, 8, "", true), Pattern::kExchange);
  EXPECT_EQ(patternOf(64 << 20, 1024, 8, "", true), Pattern::kDirect);
  EXPECT_EQ(patternOf(8, 4, 1, "all_reduce=hierarchical/ring"), Pattern::kRing);
  EXPECT_EQ(patternOf(8, 3, 1, "all_reduce=hierarchical/doubling"), Pattern::kExchange)
      << "no power of two: chosen instead";
  EXPECT_EQ(patternOf(64 << 20, 4, 1, "all_reduce=hierarchical/exchange"), Pattern::kDirect)
      << "too large to be sent at once: chosen instead";
}

TEST(Select, SeveralRanksOnSeveralHosts) {
  Topology topology = topologyOf(8, false);
  topology.hosts = 2;
  topology.ranksPerHost = 4;
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{1} << 30}) {
    for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kBroadcast}) {
      EXPECT_EQ(select(kind, bytes, topology, {}).algorithm, Algorithm::kHierarchical)
          << smd::name(kind);
      const Overrides direct = parseOverrides(std::string(smd::name(kind)) + "=direct");
      EXPECT_EQ(select(kind, bytes, topology, direct).algorithm,
                kind == OpKind::kBroadcast ? Algorithm::kHierarchical : Algorithm::kDirect);
    }
    for (const OpKind kind : {OpKind::kGather, OpKind::kScatter, OpKind::kAllToAll}) {
      EXPECT_EQ(select(kind, bytes, topology, {}).algorithm, Algorithm::kDirect) << smd::name(kind);
    }
  }
}

TEST(Select, BroadcastsBetweenHosts) {
  using step_tables::Pattern;
  const auto patternOf = [](std::uint64_t bytes, int hosts, const char* overrides = "") {
    Topology topology = topologyOf(2 * hosts, false);
    topology.hosts = hosts;
    topology.ranksPerHost = 2;
    return select(OpKind::kBroadcast, bytes, topology, parseOverrides(overrides)).pattern;
  };
  EXPECT_EQ(patternOf(8, 2), Pattern::kExchange);
  EXPECT_EQ(patternOf(8, 4), Pattern::kExchange);
  EXPECT_EQ(patternOf(8, 64), Pattern::kDoubling);
  EXPECT_EQ(patternOf(kSlot + 1, 2), Pattern::kDirect);
  EXPECT_EQ(patternOf(64 << 20, 64), Pattern::kDirect);
  EXPECT_EQ(patternOf(8, 4, "broadcast=hierarchical/direct"), Pattern::kDirect);
  EXPECT_EQ(patternOf(8, 3, "broadcast=hierarchical/doubling"), Pattern::kDoubling)
      << "a tree, of any number";
  EXPECT_EQ(patternOf(8, 4, "broadcast=hierarchical/ring"), Pattern::kExchange)
      << "there is none: chosen instead";
  EXPECT_EQ(patternOf(64 << 20, 4, "broadcast=hierarchical/exchange"), Pattern::kDirect)
      << "too large to be sent at once: chosen instead";
}

// Once a size is too large for one exchange, no larger one fits again.
TEST(Select, ChangesAtOneSizeOnly) {
  for (int size : {2, 3, 8, 64}) {
    bool wasStaged = false;
    for (std::uint64_t bytes = 0; bytes < 2 * kSlot; bytes += 8) {
      const bool isStaged =
          select(OpKind::kAllReduce, bytes, topologyOf(size, true), {}).algorithm ==
          Algorithm::kStaged;
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
  EXPECT_NE(textOf("all_reduce=ring").find("expected one_shot, staged"), std::string::npos);
  EXPECT_NE(textOf("all_reduce=alone").find("\"alone\""), std::string::npos);
  EXPECT_NE(textOf("all_reduce=staged,").find("contains \"\""), std::string::npos);
}

}  // namespace
}  // namespace smd::engine
