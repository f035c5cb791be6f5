// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Streaming copies, at every alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/stream.h"

namespace smd::kernels {
namespace {

TEST(StreamingCopy, AllAlignmentsAndSizes) {
  constexpr std::size_t kRoom = 5000;
  std::vector<unsigned char> source(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 251);
  for (std::size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 129, 1000, 4096, 4097}) {
    for (std::size_t to = 0; to < 65; ++to) {
      for (std::size_t from : {0, 1, 8, 33, 64}) {
        std::vector<unsigned char> target(kRoom, 0xA5);
        copyStreaming(target.data() + to, source.data() + from, bytes);
        ASSERT_EQ(std::memcmp(target.data() + to, source.data() + from, bytes), 0)
            << bytes << " bytes from " << from << " to " << to;
        const auto end = target.begin() + static_cast<std::ptrdiff_t>(to + bytes);
        const auto isGuard = [](unsigned char byte) { return byte == 0xA5; };
        ASSERT_TRUE(std::all_of(target.begin(), target.begin() + static_cast<std::ptrdiff_t>(to),
                                isGuard) &&
                    std::all_of(end, target.end(), isGuard))
            << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(StreamingCopy, IsForWhatDoesNotFitIntoTheCache) {
  EXPECT_FALSE(shouldStream(0));
  EXPECT_FALSE(shouldStream(64 << 10));
  EXPECT_TRUE(shouldStream(std::uint64_t{1} << 40));
}

}  // namespace
}  // namespace smd::kernels
