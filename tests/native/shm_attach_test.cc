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
  const auto region = Region::create(kSize);
  const PeerMemory memory = region->view(1);
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

}  // namespace
}  // namespace smd::transport::shm
