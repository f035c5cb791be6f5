// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// An operation on a shared buffer ends with an error while another process is in the middle of
// writing to it. The first test of its program: it forks before there are threads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "common/fork.h"
#include "support/engine_harness.h"
#include "transport/peer_memory.h"

namespace smd::engine::test {
namespace {

// Between two processes, at the two ends of a socket.
class PipeExchange {
 public:
  PipeExchange(int rank, int end) : rank_(rank), end_(end) {}

  std::vector<std::string> operator()(const std::string&, const std::string& value) const {
    const std::uint64_t size = value.size();
    SMD_REQUIRE(::write(end_, &size, sizeof size) == sizeof size);
    SMD_REQUIRE(::write(end_, value.data(), size) == static_cast<ssize_t>(size));
    std::uint64_t otherSize = 0;
    readAll(&otherSize, sizeof otherSize);
    std::string other(otherSize, 0);
    readAll(other.data(), otherSize);
    return rank_ == 0 ? std::vector{value, other} : std::vector{other, value};
  }

 private:
  void readAll(void* to, std::size_t bytes) const {
    SMD_REQUIRE(::recv(end_, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes));
  }

  int rank_;
  int end_;
};

std::shared_ptr<Communicator> join(int rank, int end) {
  EngineOptions options;
  options.interfaces = "127.";
  return Communicator::create(rank, 2, PipeExchange(rank, end), options, "test");
}

// As if this process had very many buffers that are private already: there is no room for another.
class NoPrivateCopies {
 public:
  NoPrivateCopies() {
    const ForkGuard guard;
    for (int i = 0; i < 10'000; ++i) registerPrivateCopy(&nothing_, 1, -1, 0, guard);
  }
  ~NoPrivateCopies() {
    const ForkGuard guard;
    unregisterPrivateCopies(&nothing_, 1, guard);
  }

 private:
  std::byte nothing_{};
};

// The rank that fails once waited without end for a process that is stopped.
TEST(Withdrawal, WithoutMemoryForACopyTheErrorNamesTheBuffer) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const pid_t peer = ::fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    const auto group = join(1, ends[1]);
    for (;;) ::pause();
  }
  const auto group = join(0, ends[0]);
  const auto buffer = group->allocateShared(kBytes);
  ASSERT_NE(buffer, nullptr);
  algorithms::Request request;
  request.kind = OpKind::kAllReduce;
  request.dtype = DType::kFloat32;
  request.count = kBytes / sizeof(float);
  request.input = request.output = buffer->data();
  const auto work = group->collective(std::move(request), Mode::kAsync, {});
  const transport::PeerMemory memory = group->membership().region->view(0);
  const TimePoint patience = Clock::now() + kPatience;
  while (memory.arrival(0, 1).sequence != 1 && Clock::now() < patience) std::this_thread::yield();
  EXPECT_FALSE(work->isCompleted());
  // As a process does that writes to the buffer which is announced there; it is stopped meanwhile.
  transport::RankCells& cells = memory.cells(1);
  cells.usesPeers = 1;
  std::atomic<bool> isOver{false};
  std::thread helping([&] {  // a rank that waits without end fails the test, too
    const TimePoint end = Clock::now() + std::chrono::seconds(30);
    while (!isOver && Clock::now() < end) std::this_thread::sleep_for(milliseconds(10));
    cells.usesPeers = 0;
  });
  const TimePoint begin = Clock::now();
  {
    const NoPrivateCopies full;
    group->abort("enough");
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  isOver = true;
  waitFor(*work);
  const std::string text = errorOf(*work);
  EXPECT_NE(text.find("aborted the group: enough"), std::string::npos) << text;
  EXPECT_NE(text.find("(1048576 bytes) is not safe on rank 0: rank 1 (host "), std::string::npos)
      << text;
  helping.join();
  group->close();
  ::kill(peer, SIGKILL);
  ::waitpid(peer, nullptr, 0);
  for (const int end : ends) ::close(end);
}

}  // namespace
}  // namespace smd::engine::test
