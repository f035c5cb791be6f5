// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks of one host tell each other beside their data.
#include "transport/peer_memory.h"

#include <gtest/gtest.h>

#include "transport/shm/region.h"

namespace smd::transport {
namespace {

TEST(PeerMemory, TellsWhetherAPeerIsOnAProcessor) {
  const auto region = shm::Region::create(3, 0);
  const PeerMemory mine = region->view(0);
  EXPECT_FALSE(mine.hasPeerOn(5));
  EXPECT_FALSE(mine.hasPeerOn(-1));
  mine.mine().processor = 5;
  EXPECT_FALSE(mine.hasPeerOn(5));
  mine.cells(2).processor = 5;
  EXPECT_TRUE(mine.hasPeerOn(5));
  mine.cells(2).processor = 0;
  EXPECT_FALSE(mine.hasPeerOn(5));
  EXPECT_TRUE(mine.hasPeerOn(0));
}

TEST(PeerMemory, TellsWhetherAllHaveLetGoOfWhatIsWithdrawn) {
  using Wait = PeerMemory::Wait;
  const auto region = shm::Region::create(3, 0);
  const PeerMemory mine = region->view(0);
  EXPECT_TRUE(mine.withdrawBuffers([](int) { return Wait::kHasEnded; })) << "nobody uses them";
  mine.cells(2).usesPeers = 1;
  EXPECT_FALSE(mine.withdrawBuffers([](int) { return Wait::kHasEnded; }));
  EXPECT_TRUE(mine.withdrawBuffers([](int) { return Wait::kIsNeedless; }));
  int looks = 0;
  EXPECT_TRUE(mine.withdrawBuffers([&](int peer) {
    EXPECT_EQ(peer, 2);
    if (++looks == 3) mine.cells(2).usesPeers = 0;
    return Wait::kGoesOn;
  }));
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace smd::transport
