// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Handing a region from process to process: who gets it, who is refused, and what is in it.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "common/error.h"
#include "transport/shm/attach.h"

namespace smd::transport::shm {
namespace {

AttachSecret secretOf(int seed) {
  AttachSecret secret;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    secret[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) * 16 + i);
  }
  return secret;
}

TEST(Attach, WhoKnowsTheSecretGetsTheRegion) {
  const auto region = Region::create(3);
  AttachServer server;
  server.offer(region, secretOf(1));
  FileDescriptor descriptor = requestRegion(server.socketName(), secretOf(1), milliseconds(60000));
  ASSERT_TRUE(descriptor.isOpen());
  // Threads of one process share one mapping.
  EXPECT_EQ(Region::attach(std::move(descriptor), 3), region);
}

TEST(Attach, AnotherSecretIsRefused) {
  const auto region = Region::create(2);
  AttachServer server;
  server.offer(region, secretOf(1));
  EXPECT_FALSE(requestRegion(server.socketName(), secretOf(2), milliseconds(60000)).isOpen());
  AttachSecret almost = secretOf(1);
  almost.back() ^= std::byte{1};
  EXPECT_FALSE(requestRegion(server.socketName(), almost, milliseconds(60000)).isOpen());
  // The refused did not disturb the others.
  EXPECT_TRUE(requestRegion(server.socketName(), secretOf(1), milliseconds(60000)).isOpen());
}

TEST(Attach, ASocketThatDoesNotExistMeansAnotherHost) {
  EXPECT_FALSE(requestRegion("smdistributed-nobody", secretOf(1), milliseconds(100)).isOpen());
  EXPECT_FALSE(requestRegion("", secretOf(1), milliseconds(100)).isOpen());
}

TEST(Attach, RequestsBeforeTheOfferWaitForIt) {
  const auto region = Region::create(2);
  AttachServer server;
  FileDescriptor descriptor;
  std::thread early(
      [&] { descriptor = requestRegion(server.socketName(), secretOf(1), milliseconds(60000)); });
  server.offer(region, secretOf(1));
  early.join();
  EXPECT_TRUE(descriptor.isOpen());
}

TEST(Attach, AVisitorWhoSaysNothingIsShownOut) {
  const auto region = Region::create(2);
  AttachServer server;
  server.offer(region, secretOf(1));
  const auto visitor =
      FileDescriptor::fromCall([] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, server.socketName().data(), server.socketName().size());
  ASSERT_EQ(::connect(visitor.get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                             server.socketName().size())),
            0);
  EXPECT_TRUE(requestRegion(server.socketName(), secretOf(1), milliseconds(60000)).isOpen());
}

TEST(Attach, ServersHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) names.insert(AttachServer().socketName());
  EXPECT_EQ(names.size(), 20u);
}

TEST(Region, AnotherSizeIsRefused) {
  const auto region = Region::create(4);
  for (int size : {3, 5}) {
    try {
      Region::attach(FileDescriptor(::dup(region->descriptor())), size);
      ADD_FAILURE() << "a region for 4 ranks was taken for one of " << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInternal);
      EXPECT_NE(std::string(error.what()).find("all ranks must run the same release"),
                std::string::npos);
    }
  }
}

TEST(Region, MemoryThatIsNoRegionIsRefused) {
  std::size_t bytes = 0;
  {
    const auto region = Region::create(2);
    bytes = static_cast<std::size_t>(::lseek(region->descriptor(), 0, SEEK_END));
  }
  FileDescriptor other =
      FileDescriptor::fromCall([] { return ::memfd_create("other", MFD_CLOEXEC); });
  ASSERT_EQ(::ftruncate(other.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_THROW(Region::attach(std::move(other), 2), Error);
}

TEST(Region, NobodyCanShrinkIt) {
  const auto region = Region::create(2);
  EXPECT_NE(::ftruncate(region->descriptor(), 4096), 0);
}

// Everything a rank owns is apart from everything any other rank owns.
TEST(Region, PartsDoNotOverlap) {
  constexpr int kSize = 3;
  constexpr std::size_t kArena = std::size_t{4} << 20;
  const auto region = Region::create(kSize, kArena);
  const PeerMemory memory = region->view(1);
  EXPECT_EQ(memory.arenaBytes(), kArena);
  EXPECT_EQ(memory.index(), 1);
  EXPECT_EQ(memory.size(), kSize);
  EXPECT_EQ(&memory.mine(), &memory.cells(1));
  EXPECT_NE(&memory.arrival(0, 4), &memory.arrival(0, 5));
  EXPECT_EQ(&memory.arrival(0, 4), &memory.arrival(0, 6));
  std::vector<std::pair<std::byte*, std::size_t>> parts;
  parts.emplace_back(reinterpret_cast<std::byte*>(&memory.abortBlock()), sizeof(AbortBlock));
  for (int rank = 0; rank < kSize; ++rank) {
    parts.emplace_back(reinterpret_cast<std::byte*>(&memory.cells(rank)), sizeof(RankCells));
    parts.emplace_back(memory.slot(rank, 0), kSlotBytes);
    parts.emplace_back(memory.slot(rank, 1), kSlotBytes);
    parts.emplace_back(memory.staging(rank), kStagingBytes);
    parts.emplace_back(memory.arena(rank), kArena);
    for (int to = 0; to < kSize; ++to) {
      parts.emplace_back(reinterpret_cast<std::byte*>(&region->ringControl(rank, to)),
                         sizeof(RingControl));
      parts.emplace_back(region->ringData(rank, to), kRingBytes);
    }
  }
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    EXPECT_LE(parts[i - 1].first + parts[i - 1].second, parts[i].first) << "part " << i;
  }
}

TEST(Region, WithoutRoomForArenasThereAreNone) {
  constexpr std::size_t kMoreThanAProcessCanMap = std::size_t{1} << 46;
  const auto region = Region::create(3, kMoreThanAProcessCanMap);
  EXPECT_FALSE(region->mapsArenas());
  EXPECT_EQ(region->view(0).arenaBytes(), 0u);
  EXPECT_EQ(static_cast<std::size_t>(::lseek(region->descriptor(), 0, SEEK_END)),
            Region::bytesWithoutArenas(3));
  EXPECT_EQ(Region::attach(FileDescriptor(::dup(region->descriptor())), 3), region);
}

TEST(Region, APlaceIsInAnArenaOnlyIfItsEndIs) {
  constexpr std::size_t kArena = std::size_t{2} << 20;
  const auto region = Region::create(2, kArena);
  const PeerMemory memory = region->view(1);
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  EXPECT_TRUE(memory.isInArena(0, kArena));
  EXPECT_TRUE(memory.isInArena(kArena, 0));
  EXPECT_FALSE(memory.isInArena(1, kArena));
  EXPECT_FALSE(memory.isInArena(kArena + 1, 0));
  EXPECT_FALSE(memory.isInArena(kMost, 1));
  EXPECT_FALSE(memory.isInArena(16, kMost - 8));
  EXPECT_EQ(memory.offsetInArena(memory.arena(1) + 100, 10), 100u);
  EXPECT_FALSE(memory.offsetInArena(memory.arena(1) + kArena - 9, 10).has_value());
  EXPECT_FALSE(memory.offsetInArena(memory.arena(0) + 100, 10).has_value()) << "a peer's";
  EXPECT_FALSE(memory.offsetInArena(memory.staging(1), 10).has_value());
}

}  // namespace
}  // namespace smd::transport::shm
