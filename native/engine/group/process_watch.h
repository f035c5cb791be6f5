// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// When processes of this host end. The kernel tells at once, through a process descriptor (pidfd):
// one for each process, whatever the number of groups that it shares with this one. Where none is
// to be had (no descriptors left, a kernel before 5.3, a filter of system calls) the process is
// looked at twice a second, with or without /proc, and one warning says so.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "common/file_descriptor.h"
#include "event_loop/event_loop.h"

namespace smd::engine {

// Safe to use from any thread.
class ProcessWatch {
 public:
  // Of this process; a forked child has one of its own, which watches nothing yet.
  static ProcessWatch& process();

  // Calls `onEnd`, once, on a background thread, when process `pid` has ended. Returns a number for
  // unwatch(), or 0 if it has ended already: then nothing is called.
  std::uint64_t watch(std::int64_t pid, std::function<void()> onEnd);
  // After it returns the function is not running and will not run. Not from inside of one.
  void unwatch(std::uint64_t number);

  // For tests.
  std::size_t numDescriptors();

 private:
  struct Process {
    std::int64_t pid = 0;
    FileDescriptor descriptor;                    // none: it is looked at
    std::shared_ptr<event_loop::EventLoop> loop;  // which watches the descriptor
    std::uint64_t began = 0;                      // as /proc says; 0: not known
    std::map<std::uint64_t, std::function<void()>> watchers;
  };
  using Processes = std::map<std::uint64_t, Process>;  // by a number: that of a process is reused

  Processes::iterator find(std::int64_t pid);
  bool takeDescriptor(Processes::iterator process);
  void startLooking(int error);
  void look();
  void ended(std::uint64_t key);

  std::mutex callMutex_;  // while functions run; taken before the next
  std::mutex mutex_;      // guards what follows
  std::condition_variable changed_;
  Processes processes_;
  std::uint64_t nextNumber_ = 1;
  bool isLooking_ = false;  // there is a thread that does
  bool hasWarned_ = false;
};

}  // namespace smd::engine
