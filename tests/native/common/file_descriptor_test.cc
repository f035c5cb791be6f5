// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Owning descriptors, and what becomes of them in forked children.
#include "common/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace smd {
namespace {

bool isOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

bool isEvent(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  std::array<char, 64> target{};
  return ::readlink(path.c_str(), target.data(), target.size() - 1) > 0 &&
         std::string(target.data()).find("eventfd") != std::string::npos;
}

FileDescriptor makeEvent() {
  return FileDescriptor::fromCall([] { return ::eventfd(0, EFD_CLOEXEC); });
}

// The exit code of a forked child that runs `body`.
int inChild(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(FileDescriptor, ClosesOnceAndMoves) {
  int number = -1;
  {
    FileDescriptor first = makeEvent();
    number = first.get();
    FileDescriptor second = std::move(first);
    EXPECT_FALSE(first.isOpen());  // NOLINT(bugprone-use-after-move): that is the promise
    EXPECT_EQ(second.get(), number);
    EXPECT_TRUE(isOpen(number));
    second = FileDescriptor();
    EXPECT_FALSE(isOpen(number));
  }
}

TEST(FileDescriptor, FailedCallMakesAnEmptyOne) {
  const FileDescriptor none = FileDescriptor::fromCall([] { return ::open("/nowhere", O_RDONLY); });
  EXPECT_FALSE(none.isOpen());
  EXPECT_EQ(errno, ENOENT);
}

TEST(FileDescriptor, IsClosedInForkedChildrenOnly) {
  FileDescriptor event = makeEvent();
  const int number = event.get();
  EXPECT_EQ(inChild([&] { return !isOpen(number); }), 0);
  EXPECT_TRUE(isOpen(number));
}

TEST(FileDescriptor, ReleasedOneIsKeptByForkedChildren) {
  FileDescriptor event = makeEvent();
  const int number = event.release();
  EXPECT_FALSE(event.isOpen());
  EXPECT_EQ(inChild([&] { return isOpen(number); }), 0);
  ::close(number);
}

TEST(FileDescriptor, InheritedOwnerDoesNotCloseWhatReusesItsNumber) {
  FileDescriptor event = makeEvent();
  const int number = event.get();
  EXPECT_EQ(inChild([&] {
              const int reused = ::eventfd(0, 0);
              if (reused != number) {
                return false;  // the lowest free number; else this test shows nothing
              }
              event.reset();
              return isOpen(reused);
            }),
            0);
}

TEST(FileDescriptor, ForksMayMeetDescriptorsBeingMadeAndClosed) {
  std::atomic<bool> hasEnded{false};
  std::vector<std::thread> makers;
  for (int i = 0; i < 2; ++i) {
    makers.emplace_back([&] {
      while (!hasEnded) {
        std::vector<FileDescriptor> some(8);
        for (FileDescriptor& each : some) {
          each = makeEvent();
        }
      }
    });
  }
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(inChild([&] {
                for (int fd = 0; fd < 256; ++fd) {
                  if (isEvent(fd)) {
                    return false;
                  }
                }
                return true;
              }),
              0);
  }
  hasEnded = true;
  for (std::thread& maker : makers) {
    maker.join();
  }
}

TEST(DescriptorLimit, IsRaisedAsFarAsTheSystemAllows) {
  EXPECT_EQ(inChild([] {
              rlimit limit{};
              ::getrlimit(RLIMIT_NOFILE, &limit);
              const rlim_t most = std::min<rlim_t>(limit.rlim_max, 65536);
              const auto after = [&limit](rlim_t before) {
                limit.rlim_cur = before;
                ::setrlimit(RLIMIT_NOFILE, &limit);
                raiseDescriptorLimit();
                rlimit now{};
                ::getrlimit(RLIMIT_NOFILE, &now);
                return now.rlim_cur;
              };
              return after(64) == most && after(limit.rlim_max) == limit.rlim_max;
            }),
            0);
}

TEST(ForkGeneration, GrowsInForkedChildrenOnly) {
  const std::uint64_t generation = forkGeneration();
  EXPECT_EQ(inChild([&] { return isForkedChild(generation); }), 0);
  EXPECT_FALSE(isForkedChild(generation));
}

}  // namespace
}  // namespace smd
