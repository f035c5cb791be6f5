// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/per_process.h"
#include "common/signals.h"

namespace smd::engine {
namespace {

#ifndef SYS_pidfd_open
constexpr long SYS_pidfd_open = 434;  // the same number on every architecture
#endif

constexpr milliseconds kBetweenLooks{500};

FileDescriptor openProcess(std::int64_t pid) {
  return FileDescriptor::fromCall(
      [pid] { return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); });
}

bool hasEnded(const FileDescriptor& process) {
  pollfd waiting{process.get(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

struct Status {
  char state;
  std::uint64_t threads, began;
};

// Of /proc/PID/stat; none if it cannot be read.
std::optional<Status> statusOf(std::int64_t pid) {
  char text[1024];
  std::snprintf(text, sizeof text, "/proc/%lld/stat", static_cast<long long>(pid));
  const FileDescriptor file =
      FileDescriptor::fromCall([&text] { return ::open(text, O_RDONLY | O_CLOEXEC); });
  const ssize_t size = file.isOpen() ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (size <= 0) return std::nullopt;
  text[size] = '\0';
  const char* end = std::strrchr(text, ')');  // the name may hold anything
  Status status{};
  unsigned long long threads = 0, began = 0;
  if (end == nullptr ||
      std::sscanf(end + 1,  // state, 16 numbers, threads, one number, beginning
                  " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %*s"
                  " %llu",
                  &status.state, &threads, &began) != 3) {
    return std::nullopt;
  }
  status.threads = threads;
  status.began = began;
  return status;
}

// Whether a process of this number runs but is only waiting for its parent, told without a
// descriptor: then there is no program any more that its entry could point to.
bool isLeftover(std::int64_t pid) {
  char path[48], target[8];
  std::snprintf(path, sizeof path, "/proc/%lld", static_cast<long long>(pid));
  if (::access(path, F_OK) != 0) return false;  // it may be hidden, or there is no /proc
  std::snprintf(path, sizeof path, "/proc/%lld/exe", static_cast<long long>(pid));
  return ::readlink(path, target, sizeof target) < 0 && errno == ENOENT;
}

// Without a process descriptor. `began`: as it was when the watch began; filled in if it is 0.
bool hasEnded(std::int64_t pid, std::uint64_t& began) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return true;
  const std::optional<Status> status = statusOf(pid);
  if (!status) return isLeftover(pid);
  const bool isOver = status->state == 'X' || (status->state == 'Z' && status->threads <= 1);
  if (began == 0) began = status->began;
  return isOver || began != status->began;  // else the number is another process's now
}

}  // namespace

ProcessWatch& ProcessWatch::process() {
  static PerProcess<ProcessWatch> instance;
  return instance.get();
}

// The caller holds mutex_. A process that has ended, and whose watchers are about to be called, is
// not found.
ProcessWatch::Processes::iterator ProcessWatch::find(std::int64_t pid) {
  for (auto it = processes_.begin(); it != processes_.end(); ++it) {
    Process& process = it->second;
    if (process.pid != pid) continue;
    const bool isOver =
        process.descriptor.isOpen() ? hasEnded(process.descriptor) : hasEnded(pid, process.began);
    if (!isOver) return it;
  }
  return processes_.end();
}

std::uint64_t ProcessWatch::watch(std::int64_t pid, std::function<void()> onEnd) {
  Processes::node_type dropped;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  auto process = find(pid);
  const bool isNew = process == processes_.end();
  if (isNew) process = processes_.emplace(nextNumber_++, Process{}).first;
  process->second.pid = pid;
  const std::uint64_t number = nextNumber_++;
  try {
    process->second.watchers.emplace(number, std::move(onEnd));
    if (isNew && !takeDescriptor(process)) {
      const int error = errno;
      if (hasEnded(pid, process->second.began)) {
        dropped = processes_.extract(process);
        return 0;
      }
      startLooking(error);
    }
  } catch (const std::exception&) {  // no memory; one that nobody looks at must not be found later
    if (isNew) dropped = processes_.extract(process);
    throw;
  }
  return number;
}

void ProcessWatch::unwatch(std::uint64_t number) {
  Processes::node_type last;  // destroyed without the locks: the loop may be about to take them
  {
    const std::lock_guard calling(callMutex_);
    const std::lock_guard lock(mutex_);
    for (auto it = processes_.begin(); it != processes_.end(); ++it) {
      if (it->second.watchers.erase(number) == 0) continue;
      if (it->second.watchers.empty()) last = processes_.extract(it);
      break;
    }
    if (isLooking_) changed_.notify_all();
  }
  if (!last.empty() && last.mapped().loop != nullptr) {
    last.mapped().loop->unwatch(last.mapped().descriptor.get());
  }
}

std::size_t ProcessWatch::numDescriptors() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [key, process] : processes_) count += process.descriptor.isOpen() ? 1 : 0;
  return count;
}

// Caller holds mutex_. False, with errno: there is none.
bool ProcessWatch::takeDescriptor(Processes::iterator process) {
  Process& entry = process->second;
  FileDescriptor descriptor = openProcess(entry.pid);
  if (!descriptor.isOpen()) return false;
  try {
    std::shared_ptr<event_loop::EventLoop> loop = event_loop::EventLoop::process();
    loop->watch(descriptor.get(), EPOLLIN,
                [this, key = process->first](std::uint32_t) { ended(key); });
    entry.loop = std::move(loop);
    entry.descriptor = std::move(descriptor);
    return true;
  } catch (const std::exception&) {  // the loop needs descriptors of its own
    errno = EMFILE;
    return false;
  }
}

// Caller holds mutex_. `error`: why there is no descriptor.
void ProcessWatch::startLooking(int error) {
  std::string how = "They are looked at twice a second instead";
  if (!isLooking_) {
    try {
      const NoSignals meanwhile;
      std::thread thread([this] { look(); });
      pthread_setname_np(thread.native_handle(), "smd-look");
      thread.detach();  // it ends with the last process that needs it
      isLooking_ = true;
    } catch (const std::system_error&) {
      how =
          "For want of a thread that could look at them, the death of one is noticed when a "
          "deadline passes";
    }
  }
  if (std::exchange(hasWarned_, true)) return;
  std::string expected = "Linux 5.3 or later, and no filter that forbids pidfd_open";
  if (error == EMFILE || error == ENFILE) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    expected = "room for a descriptor for each, and this process may have " +
               std::to_string(limit.rlim_cur) +
               ". Raise the limit on open files (ulimit -n), or close files that are not needed";
  }
  logWarning("the kernel cannot tell when processes of other ranks end (" +
             std::generic_category().message(error) + "); expected " + expected + ". " + how + ".");
}

void ProcessWatch::look() {
  std::uint64_t gone = 0;  // one at a time: a list of them would need memory
  while (true) {
    if (gone != 0) ended(gone);
    std::unique_lock lock(mutex_);
    const auto isNeeded = [this] {
      for (const auto& [key, process] : processes_) {
        if (!process.descriptor.isOpen()) return true;
      }
      return false;
    };
    if (gone == 0) changed_.wait_for(lock, kBetweenLooks, [&isNeeded] { return !isNeeded(); });
    if (!isNeeded()) {
      isLooking_ = false;
      return;
    }
    gone = 0;
    for (auto& [key, process] : processes_) {
      if (process.descriptor.isOpen() || !hasEnded(process.pid, process.began)) continue;
      gone = key;
      break;
    }
  }
}

// On a background thread.
void ProcessWatch::ended(std::uint64_t key) {
  Processes::node_type process;  // destroyed last: its loop calls this from a function of its own
  const std::lock_guard calling(callMutex_);
  {
    const std::lock_guard lock(mutex_);
    process = processes_.extract(key);
  }
  if (process.empty()) return;
  for (const auto& [number, onEnd] : process.mapped().watchers) onEnd();
  if (process.mapped().loop != nullptr) {
    process.mapped().loop->unwatch(process.mapped().descriptor.get());
  }
}

}  // namespace smd::engine
