// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Arenas: how large they are made, what is given out, what becomes of what comes back.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <thread>

#include "transport/shm/arena.h"
#include "transport/shm/arena_size.h"

namespace smd::transport::shm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// --- sizes ---

TEST(ArenaSize, Table) {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  struct Row {
    MemoryLimits limits;
    int ranks;
    std::uint64_t expected;
  };
  const std::vector<Row> rows = {
      {{16 * kGiB, kNone, kNone}, 2, 8 * kGiB},
      {{16 * kGiB, kNone, kNone}, 3, (16 * kGiB / 3) / (2 * kMiB) * (2 * kMiB)},
      {{4096 * kGiB, kNone, kNone}, 8, 64 * kGiB},  // as much as many groups find room for
      {{16 * kGiB, 16 * kGiB, kNone}, 2, kGiB / 2},
      {{16 * kGiB, kNone, kGiB}, 2, (kGiB - 10 * kMiB) / 2 / (2 * kMiB) * (2 * kMiB)},
      {{16 * kGiB, 32 * kMiB, kNone}, 2, 0},
      {{16 * kGiB, kNone, 10 * kMiB}, 2, 0},
      {{16 * kGiB, kNone, kMiB}, 2, 0},
      {{0, kNone, kNone}, 2, 0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(arenaBytesFor(row.limits, row.ranks, 10 * kMiB), row.expected)
        << row.limits.physicalBytes << " " << row.limits.addressSpaceBytes << " "
        << row.limits.fileBytes << " " << row.ranks;
  }
  EXPECT_GT(memoryLimitsOfThisProcess().physicalBytes, 0u);
}

// --- ranges ---

TEST(RangeSet, GivesItsRangesUpOneByOne) {
  RangeSet set;
  set.insert({5, 9});
  set.insert({1, 3});
  for (const auto& [begin, end] : {std::pair(1, 3), std::pair(5, 9)}) {
    const auto range = set.takeFirst();
    ASSERT_TRUE(range.has_value());
    EXPECT_EQ(range->begin, begin);
    EXPECT_EQ(range->end, end);
  }
  EXPECT_FALSE(set.takeFirst().has_value());
  EXPECT_EQ(set.total(), 0);
}

TEST(RangeSet, BehavesLikeASetOfNumbers) {
  constexpr std::uint64_t kNumbers = 200;
  std::mt19937 random(7);
  const auto below = [&random](std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random);
  };
  RangeSet set;
  std::vector<bool> model(kNumbers, false);
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t begin = below(kNumbers);
    const std::uint64_t end = begin + below(kNumbers - begin) + 1;
    const auto first = model.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = model.begin() + static_cast<std::ptrdiff_t>(end);
    if (step % 3 == 0) {
      if (std::find(first, last, true) == last) {
        set.insert({begin, end});
        std::fill(first, last, true);
      }
    } else if (step % 3 == 1) {
      std::vector<bool> taken(kNumbers, false);
      std::uint64_t before = 0;
      for (const ByteRange& part : set.erase({begin, end})) {
        ASSERT_GE(part.begin, before);
        ASSERT_GT(part.size(), 0u);
        before = part.end;
        for (std::uint64_t i = part.begin; i < part.end; ++i) taken[i] = true;
      }
      for (std::uint64_t i = 0; i < kNumbers; ++i) {
        ASSERT_EQ(taken[i], i >= begin && i < end && model[i]) << i;
      }
      std::fill(first, last, false);
    } else {
      const std::uint64_t size = below(20) + 1;
      const std::vector<bool> wanted(size, true);
      const auto expected = std::search(model.begin(), model.end(), wanted.begin(), wanted.end());
      const auto found = set.takeFirstFit(size);
      ASSERT_EQ(found.has_value(), expected != model.end());
      if (!found) continue;
      ASSERT_EQ(*found, static_cast<std::uint64_t>(expected - model.begin()));
      std::fill(expected, expected + static_cast<std::ptrdiff_t>(size), false);
    }
    ASSERT_EQ(set.total(),
              static_cast<std::uint64_t>(std::count(model.begin(), model.end(), true)));
  }
}

// --- arenas ---

class Arenas : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 128 * kMiB;

  std::uint64_t bytesInUse() const {
    struct stat status;
    EXPECT_EQ(fstat(region_->descriptor(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  static bool isZero(const SharedBuffer& buffer) {
    return buffer.data()[0] == std::byte{0} &&
           std::memcmp(buffer.data(), buffer.data() + 1, buffer.size() - 1) == 0;
  }
  static void fill(const SharedBuffer& buffer, int value) {
    std::memset(buffer.data(), value, buffer.size());
  }

  std::shared_ptr<Region> region_ = Region::create(2, kSize);
  std::shared_ptr<Arena> arena_ = Arena::create(region_, 1);
};

TEST_F(Arenas, BuffersAreAlignedApartAndZero) {
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  const PeerMemory memory = region_->view(1);
  for (std::size_t size : {std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
                           kMiB, 3 * kMiB + 5}) {
    buffers.push_back(arena_->allocate(size));
    ASSERT_NE(buffers.back(), nullptr);
    EXPECT_EQ(buffers.back()->size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffers.back()->data()) % 4096, 0u);
    EXPECT_TRUE(isZero(*buffers.back()));
    EXPECT_TRUE(memory.offsetInArena(buffers.back()->data(), size).has_value());
    fill(*buffers.back(), static_cast<int>(buffers.size()));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_EQ(buffers[i]->data()[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(buffers[i]->data()[buffers[i]->size() - 1], static_cast<std::byte>(i + 1));
  }
}

TEST_F(Arenas, APeerSeesThemWhereTheyLie) {
  const auto buffer = arena_->allocate(100);
  const std::uint64_t offset = *region_->view(1).offsetInArena(buffer->data(), 100);
  fill(*buffer, 42);
  EXPECT_EQ(region_->view(0).arena(1)[offset + 99], std::byte{42});
}

TEST_F(Arenas, FullMeansNullAndWhatComesBackIsUsedAgain) {
  auto most = arena_->allocate(kSize - 2 * kMiB);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(arena_->allocate(3 * kMiB), nullptr);
  const auto rest = arena_->allocate(2 * kMiB);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(arena_->allocate(1), nullptr);
  const std::byte* at = most->data();
  most.reset();
  const auto again = arena_->allocate(kSize - 2 * kMiB);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->data(), at);
  EXPECT_EQ(arena_->allocate(0), nullptr);
  EXPECT_EQ(arena_->allocate(std::numeric_limits<std::size_t>::max()), nullptr);
}

TEST_F(Arenas, NeighboursThatComeBackGrowTogether) {
  std::vector<std::shared_ptr<SharedBuffer>> buffers;
  while (auto buffer = arena_->allocate(8 * kMiB)) buffers.push_back(std::move(buffer));
  EXPECT_EQ(buffers.size(), kSize / (8 * kMiB));
  std::shuffle(buffers.begin(), buffers.end(), std::mt19937(3));
  buffers.clear();
  EXPECT_NE(arena_->allocate(kSize), nullptr);
}

TEST_F(Arenas, WhatIsUsedAgainIsZero) {
  for (std::size_t size : {std::size_t{5000}, 30 * kMiB, 100 * kMiB}) {
    for (int repetition = 0; repetition < 3; ++repetition) {
      const auto buffer = arena_->allocate(size);
      ASSERT_NE(buffer, nullptr);
      EXPECT_TRUE(isZero(*buffer)) << size << " bytes, the " << repetition << ". time";
      fill(*buffer, 0x5A);
    }
  }
}

// A part that had been used, a part that had not.
TEST_F(Arenas, WhatIsUsedAgainInPartIsZero) {
  fill(*arena_->allocate(kMiB), 0x5A);
  EXPECT_TRUE(isZero(*arena_->allocate(3 * kMiB)));
}

// To clear what is written at once would be wasted; whoever asks for zeros later still gets them.
TEST_F(Arenas, WhatIsUsedAgainIsAsItWasLeftIfZerosAreNotWanted) {
  fill(*arena_->allocate(kMiB), 0x5A);
  {
    const auto buffer = arena_->allocate(kMiB, Contents::kAny);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(buffer->data()[kMiB - 1], std::byte{0x5A});
  }
  EXPECT_TRUE(isZero(*arena_->allocate(kMiB)));
}

TEST_F(Arenas, NothingCostsMemoryBeforeItIsAllocated) { EXPECT_LT(bytesInUse(), kMiB); }

TEST_F(Arenas, PagesComeAtOnceAndManyFreeOnesGoBack) {
  const std::uint64_t before = bytesInUse();
  auto large = arena_->allocate(100 * kMiB);
  EXPECT_GE(bytesInUse(), before + 100 * kMiB);
  large.reset();
  EXPECT_LT(bytesInUse(), before + 64 * kMiB);
  auto small = arena_->allocate(20 * kMiB);
  small.reset();  // kept: a training loop asks for the same sizes again
  EXPECT_GE(bytesInUse(), before + 20 * kMiB);
}

TEST_F(Arenas, ARetiredOneGivesNothingOutAndUsesNothingAgain) {
  auto buffer = arena_->allocate(kMiB);
  fill(*buffer, 1);
  std::byte* at = buffer->data();
  arena_->retire();
  EXPECT_EQ(arena_->allocate(1), nullptr);
  EXPECT_EQ(buffer->data()[kMiB - 1], std::byte{1});
  buffer.reset();
  EXPECT_EQ(*at, std::byte{0}) << "its pages have gone to the system";
  *at = std::byte{2};  // a late writer finds memory where it was
}

TEST_F(Arenas, ABufferOutlivesArenaAndRegion) {
  const auto buffer = arena_->allocate(kMiB);
  arena_.reset();
  std::weak_ptr<Region> region = region_;
  region_.reset();
  EXPECT_FALSE(region.expired());
  fill(*buffer, 7);
  EXPECT_EQ(buffer->data()[kMiB - 1], std::byte{7});
}

TEST_F(Arenas, TheLastBufferLetsTheRegionGo) {
  auto buffer = arena_->allocate(kMiB);
  arena_.reset();
  const std::weak_ptr<Region> region = std::exchange(region_, nullptr);
  buffer.reset();
  EXPECT_TRUE(region.expired());
}

TEST_F(Arenas, AForkedChildThatDropsABufferChangesNothing) {
  auto buffer = arena_->allocate(kMiB);
  fill(*buffer, 3);
  const pid_t child = fork();
  if (child == 0) {
    buffer.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(buffer->data()[kMiB - 1], std::byte{3});
  EXPECT_NE(arena_->allocate(kMiB)->data(), buffer->data());
}

TEST_F(Arenas, AForkedChildHasItsOwnCopyOfABuffer) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "in a child, TSan puts memory of its own where the buffer was";
#endif
  const auto buffer = arena_->allocate(kMiB);
  fill(*buffer, 3);
  const pid_t child = fork();
  if (child == 0) {
    const bool isInherited = buffer->data()[kMiB - 1] == std::byte{3};
    fill(*buffer, 4);
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(buffer->data()[0] == std::byte{4} ? 0 : 1);
    int status = 0;
    waitpid(grandchild, &status, 0);
    _exit(isInherited && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(buffer->data()[0], std::byte{3});
}

// --- taken away from peers ---

// The region as another process maps it.
class AsPeer {
 public:
  AsPeer(const Region& region, std::size_t bytes)
      : bytes_(bytes),
        address_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                      region.descriptor(), 0)) {
    EXPECT_NE(address_, MAP_FAILED);
  }
  ~AsPeer() { munmap(address_, bytes_); }
  AsPeer(const AsPeer&) = delete;
  AsPeer& operator=(const AsPeer&) = delete;

  // `offset`: in the region.
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(address_) + offset; }

 private:
  const std::size_t bytes_;
  void* const address_;
};

// A part of one buffer, that begins and ends within pages.
class Taken : public Arenas {
 protected:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kBegin = 3 * kPage + 100;
  static constexpr std::size_t kBytes = 2 * kMiB;

  // Of `buffer`, in the region.
  std::size_t offsetOf(const SharedBuffer& buffer) const {
    return Region::bytesWithoutArenas(2) +
           static_cast<std::size_t>(buffer.data() - region_->view(0).arena(0));
  }
  bool holds(int value) const {
    const auto expected = static_cast<std::byte>(value);
    return std::all_of(buffer_->data(), buffer_->data() + buffer_->size(),
                       [expected](std::byte each) { return each == expected; });
  }

  // Of this process alone, in pages.
  static std::uint64_t ownBytes() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::uint64_t kib = 0;
    for (std::string word; file >> word;) {
      if (word == "Anonymous:") file >> kib;
    }
    return kib * 1024;
  }

  std::shared_ptr<SharedBuffer> buffer_ = arena_->allocate(4 * kMiB);
  const AsPeer peer_{*region_, Region::bytesWithoutArenas(2) + 2 * kSize};
};

// Of the heap, and of what a sanitizer notes about it.
constexpr std::uint64_t kSlack = 64 << 10;

TEST_F(Taken, NothingThatAPeerWritesArrivesAnyMore) {
  fill(*buffer_, 3);
  EXPECT_EQ(*peer_.at(offsetOf(*buffer_)), std::byte{3});
  const std::uint64_t before = bytesInUse();
  arena_->retire();
  ASSERT_TRUE(arena_->makePrivate(buffer_->data() + kBegin, kBytes));
  EXPECT_TRUE(holds(3));
  EXPECT_LE(bytesInUse() + kBytes, before) << "there are two of what is nobody's now";
  std::memset(peer_.at(offsetOf(*buffer_) + kBegin), 4, kBytes);
  EXPECT_TRUE(holds(3));
  fill(*buffer_, 5);
  EXPECT_EQ(*peer_.at(offsetOf(*buffer_) + kBegin), std::byte{4});
  EXPECT_EQ(*peer_.at(offsetOf(*buffer_)), std::byte{5}) << "what was not taken is shared";
  const std::uint64_t own = ownBytes();
  buffer_.reset();
  EXPECT_LE(bytesInUse() + 4 * kMiB, before) << "what lay after the private part stayed once";
  EXPECT_LE(ownBytes() + kBytes - kSlack, own) << "and so did that part";
  arena_.reset();
  region_.reset();
}

TEST_F(Taken, NothingThatAThreadWritesMeanwhileIsLost) {
  fill(*buffer_, 0);
  std::atomic<bool> isOver{false};
  std::uint64_t rounds = 0;
  std::thread writing([&] {
    for (; !isOver.load() || rounds == 0; ++rounds) {
      for (std::size_t page = 0; page < kBytes; page += kPage) {
        reinterpret_cast<std::uint32_t&>(*(buffer_->data() + 3 * kPage + page)) += 1;
      }
    }
  });
  ASSERT_TRUE(arena_->makePrivate(buffer_->data() + 3 * kPage, kBytes));
  isOver = true;
  writing.join();
  for (std::size_t page = 0; page < kBytes; page += kPage) {
    ASSERT_EQ(reinterpret_cast<std::uint32_t&>(*(buffer_->data() + 3 * kPage + page)), rounds);
  }
}

// What was taken as after any fork, the rest as before it.
TEST_F(Taken, AForkedChildHasACopyOfAllOfIt) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "in a child, TSan puts memory of its own where the buffer was";
#endif
  const auto other = arena_->allocate(kMiB);
  fill(*other, 2);
  fill(*buffer_, 3);
  ASSERT_TRUE(arena_->makePrivate(buffer_->data() + kBegin, kBytes));
  const pid_t child = fork();
  if (child == 0) {
    const bool isInherited = holds(3) && other->data()[0] == std::byte{2};
    fill(*buffer_, 4);
    fill(*other, 4);
    _exit(isInherited ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(holds(3));
  EXPECT_EQ(other->data()[kMiB - 1], std::byte{2});
}

TEST_F(Arenas, ThreadsNeverShareABuffer) {
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      std::vector<std::shared_ptr<SharedBuffer>> mine;
      for (int step = 0; step < 300; ++step) {
        if (mine.size() < 8 && random() % 2 == 0) {
          auto buffer = arena_->allocate(random() % (256 << 10) + 1);
          ASSERT_NE(buffer, nullptr);
          EXPECT_EQ(buffer->data()[buffer->size() - 1], std::byte{0});
          fill(*buffer, thread);
          mine.push_back(std::move(buffer));
        } else if (!mine.empty()) {
          const std::size_t index = random() % mine.size();
          EXPECT_EQ(mine[index]->data()[0], static_cast<std::byte>(thread));
          EXPECT_EQ(mine[index]->data()[mine[index]->size() - 1], static_cast<std::byte>(thread));
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(index));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace smd::transport::shm
