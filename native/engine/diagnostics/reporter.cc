// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/reporter.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/file_descriptor.h"
#include "common/fork.h"
#include "common/per_process.h"
#include "common/signals.h"
#include "engine/group/registry.h"

namespace smd::engine {
namespace {

void writeToStderr(const std::string& text) {
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (count < 0 && errno != EINTR) {
      return;  // nobody reads it, and there is no other place to say so
    }
  }
}

class Reporter {
 public:
  static Reporter& process() {
    static PerProcess<Reporter> instance;
    return instance.get();
  }

  // The descriptor whose counter tells the thread what to do; starts the thread.
  int start() {
    const std::lock_guard lock(mutex_);
    if (wake_.isOpen()) return wake_.get();
    wake_ = FileDescriptor::fromCall([] { return ::eventfd(0, EFD_CLOEXEC); });
    if (!wake_.isOpen()) throw systemError("eventfd");
    const NoSignals meanwhile;
    try {
      std::thread thread([this] { run(); });
      pthread_setname_np(thread.native_handle(), "smd-report");
      thread.detach();
    } catch (...) {
      wake_ = {};
      throw;
    }
    return wake_.get();
  }

  void add(std::string text) {
    const int wake = start();
    {
      const std::lock_guard lock(mutex_);
      texts_.push_back(std::move(text));
    }
    ring(wake, kText);
  }

  // In the counter, which adds up what comes at once.
  static constexpr std::uint64_t kText = 1;
  static constexpr std::uint64_t kRecord = std::uint64_t{1} << 32;

  // Safe in a signal handler.
  static void ring(int wake, std::uint64_t what) {
    [[maybe_unused]] const ssize_t written = ::write(wake, &what, sizeof what);
  }

 private:
  void run() {
    for (;;) {
      std::uint64_t what = 0;
      if (::read(wake_.get(), &what, sizeof what) != sizeof what) continue;
      std::vector<std::string> texts;
      {
        const std::lock_guard lock(mutex_);
        texts.swap(texts_);
      }
      try {
        if (what >= kRecord) texts.push_back(flightRecordText());
        for (const std::string& text : texts) writeToStderr("[smdistributed] " + text);
      } catch (const std::exception&) {  // no memory: there will be other occasions
      }
    }
  }

  std::mutex mutex_;
  FileDescriptor wake_;
  std::vector<std::string> texts_;
};

std::atomic<int> signalWake{-1};
std::atomic<std::uint64_t> signalGeneration{0};

void onSignal(int) {
  const int error = errno;
  if (!isForkedChild(signalGeneration.load(std::memory_order_relaxed))) {
    Reporter::ring(signalWake.load(std::memory_order_relaxed), Reporter::kRecord);
  }
  errno = error;
}

}  // namespace

void installSignalReport() {
  struct sigaction current{};
  if (sigaction(SIGUSR1, nullptr, &current) != 0) return;
  const bool isOurs = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == onSignal;
  const bool isDefault = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
  if (!isDefault && !isOurs) return;
  if (isOurs && !isForkedChild(signalGeneration.load(std::memory_order_relaxed)) &&
      signalWake.load(std::memory_order_relaxed) >= 0) {
    return;
  }
  signalWake.store(Reporter::process().start(), std::memory_order_relaxed);
  signalGeneration.store(forkGeneration(), std::memory_order_relaxed);
  struct sigaction ours{};
  ours.sa_handler = onSignal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGUSR1, &ours, nullptr);
}

void report(std::string text) {
  try {
    Reporter::process().add(std::move(text));
  } catch (const std::exception&) {  // no descriptor, no thread: the operation matters more
  }
}

}  // namespace smd::engine
