// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of this process, for tests of the engine: a World makes one Communicator per
// rank over an exchange in memory, runs a function on every rank, and ends the program with a line
// per rank ("where it is") if the ranks are not through by the deadline.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "engine/group/communicator.h"
#include "support/sanitizers.h"

namespace smd::engine::test {

// No test waits longer. A deadline for machines that are busy with other things, not a measurement.
inline constexpr std::chrono::seconds kPatience{90};

// Whether a sanitizer makes everything several times slower: the longest tests then do less.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif

// Gives everyone everyone's value: what a rendezvous store does between processes.
class MemoryExchange {
 public:
  explicit MemoryExchange(int worldSize) : worldSize_(static_cast<std::size_t>(worldSize)) {}

  ExchangeFn ofRank(int rank) {
    return [this, rank](const std::string& key, const std::string& value) {
      std::unique_lock lock(mutex_);
      std::map<int, std::string>& values = values_[key];
      values[rank] = value;
      changed_.notify_all();
      changed_.wait(lock, [&] { return values.size() == worldSize_ || isBroken_; });
      if (isBroken_) throw Error(ErrorKind::kInternal, "another rank could not be made");
      std::vector<std::string> all;
      for (const auto& [peer, bytes] : values) all.push_back(bytes);
      return all;
    };
  }

  // Ends the wait of all ranks: one of them will not come.
  void giveUp() {
    const std::lock_guard lock(mutex_);
    isBroken_ = true;
    changed_.notify_all();
  }

 private:
  const std::size_t worldSize_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int, std::string>> values_;
  bool isBroken_ = false;
};

// Where the ranks' threads are, in words.
class Whereabouts {
 public:
  explicit Whereabouts(int worldSize) : places_(static_cast<std::size_t>(worldSize), "starting") {}
  void set(int rank, std::string place) {
    const std::lock_guard lock(mutex_);
    places_[static_cast<std::size_t>(rank)] = std::move(place);
  }
  void print() {
    const std::lock_guard lock(mutex_);
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      std::fprintf(stderr, "  rank %zu: %s\n", rank, places_[rank].c_str());
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> places_;
};

// For the bodies of ranks, instead of ASSERT_*: throws, so that the group is aborted and the other
// ranks do not wait for one that has given up.
inline void requireNone(const std::string& problem) {
  if (!problem.empty()) throw std::runtime_error(problem);
}
#define SMD_REQUIRE(statement) \
  ::smd::engine::test::requireNone((statement) ? "" : "not true: " #statement)

// Runs `body(rank)` on one thread per rank and joins them. An exception is a failure of the test
// and calls `onException(rank)`. A missed deadline ends the program.
inline void runThreads(int worldSize, Whereabouts& whereabouts,
                       const std::function<void(int)>& body,
                       const std::function<void(int)>& onException) {
  std::mutex mutex;
  std::condition_variable changed;
  int running = worldSize;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < worldSize; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
        whereabouts.set(rank, "done");
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
        whereabouts.set(rank, std::string("threw: ") + error.what());
        onException(rank);
      }
      const std::lock_guard lock(mutex);
      --running;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, kPatience, [&] { return running == 0; })) {
      std::fprintf(stderr, "The ranks are not through after %lld s. They are at:\n",
                   static_cast<long long>(kPatience.count()));
      whereabouts.print();
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

struct WorldOptions {
  int size = 2;
  TransportChoice transport = TransportChoice::kAuto;
  std::string algorithm = {};  // SMDDP_ALGORITHM
  nanoseconds timeout = std::chrono::seconds(60);
  std::vector<int> ranksPerHost = {};  // in rank order; empty: all are on this one
  nanoseconds reportStallAfter = std::chrono::seconds(30);
};

class World {
 public:
  explicit World(WorldOptions options)
      : options_(std::move(options)),
        exchange_(options_.size),
        whereabouts_(options_.size),
        communicators_(static_cast<std::size_t>(options_.size)) {
    // Before any thread of this world exists: the environment is not safe to change later.
    setenv("SMDDP_ALGORITHM", options_.algorithm.c_str(), 1);
    runThreads(
        options_.size, whereabouts_,
        [&](int rank) {
          EngineOptions settings;
          settings.timeout = options_.timeout;
          settings.stall = options_.reportStallAfter;
          settings.transport = options_.transport;
          settings.interfaces = "127.";
          settings.machineSuffix = hostOf(rank);
          communicators_[static_cast<std::size_t>(rank)] =
              Communicator::create(rank, options_.size, exchange_.ofRank(rank), settings, "test");
        },
        [&](int) { exchange_.giveUp(); });
  }
  explicit World(int size) : World(WorldOptions{.size = size}) {}
  ~World() { closeAll(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return options_.size; }
  Communicator& of(int rank) { return *communicators_[static_cast<std::size_t>(rank)]; }
  void at(int rank, std::string place) { whereabouts_.set(rank, std::move(place)); }
  // Drops the test's own reference.
  void release(int rank) { communicators_[static_cast<std::size_t>(rank)].reset(); }

  // An exception on one rank aborts the group, so that the others need not wait for the deadline.
  void run(const std::function<void(int)>& body) {
    runThreads(size(), whereabouts_, body, [&](int rank) {
      if (communicators_[static_cast<std::size_t>(rank)]) of(rank).abort("its test failed");
    });
  }

  // All at once, as programs end.
  void closeAll() {
    runThreads(
        size(), whereabouts_,
        [&](int rank) {
          at(rank, "closing");
          if (communicators_[static_cast<std::size_t>(rank)]) of(rank).close();
        },
        [](int) {});
  }

 private:
  std::string hostOf(int rank) const {
    int before = 0;
    for (std::size_t host = 0; host < options_.ranksPerHost.size(); ++host) {
      before += options_.ranksPerHost[host];
      if (rank < before) return "/host " + std::to_string(host);
    }
    return "";
  }

  WorldOptions options_;
  MemoryExchange exchange_;
  Whereabouts whereabouts_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

// Waits for `work` as an application would. Fails the test after kPatience.
inline void waitFor(Work& work) {
  if (!work.waitUntil(Clock::now() + kPatience, nullptr)) {
    ADD_FAILURE() << describe(work.signature()) << " was not complete after the deadline";
    std::abort();
  }
}

// The error text of a completed work; empty if it went well.
inline std::string errorOf(const Work& work) { return work.error() ? work.error()->what() : ""; }

// Without the prefix that tells operation, rank and host.
inline std::string withoutPrefix(const std::string& text) {
  const std::string end = "group 'test'): ";
  const auto at = text.find(end);
  return at == std::string::npos ? "(no prefix) " + text : text.substr(at + end.size());
}

}  // namespace smd::engine::test
