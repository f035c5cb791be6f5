// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Tells when processes of this host end. The kernel reports that at once, through a process
// descriptor (pidfd); there is one for each process, however many groups it shares with this
// process. If there is no descriptor (none left, a kernel before 5.3, a filter of system calls),
// the process is looked at twice a second, with or without /proc, and one warning says so.
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
  // The one of this process. A forked child has its own, which watches nothing at first.
  static ProcessWatch& process();

  // Calls `onEnd`, once, on a background thread, when process `pid` has ended. Returns a number for
  // unwatch(), or 0 if it has ended already: then nothing is called.
  std::uint64_t watch(std::int64_t pid, std::function<void()> onEnd);
  // When it returns, the function does not run and will not run. Not for use inside such a
  // function.
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

  std::mutex callMutex_;  // held while functions run; taken before mutex_
  std::mutex mutex_;      // guards what follows
  std::condition_variable changed_;
  Processes processes_;
  std::uint64_t nextNumber_ = 1;
  bool isLooking_ = false;  // there is a thread that does
  bool hasWarned_ = false;
};

}  // namespace smd::engine
