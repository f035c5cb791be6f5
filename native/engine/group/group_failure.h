// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a group ends: with the first error that any rank meets, on all ranks, or because this rank
// closes it. The first error wins and stays. Before an operation ends with it the wires are closed
// and shared buffers withdrawn, so that nothing writes into a buffer that the caller has got back.
//
//   fail()    this rank has met an error: it becomes the group's, and all ranks are told
//   learn()   another rank has said that the group has failed: told on at once, but the group's
//             error only once fail() is called, by the next thread that drives an operation, since
//             to close the wires takes time, which the thread that receives does not have
//   leave()   this rank closes the group
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "algorithms/exposed_buffer.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/signature.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/peers.h"
#include "engine/group/work.h"
#include "transport/refusal.h"

namespace smd::engine {

// All of it may be called by any thread, unless it says otherwise.
class GroupFailure {
 public:
  // Why the group has failed, as ranks tell one another.
  struct News {
    Error error;
    Signature during;              // the collective in which a rank met it; sequence 0: in none
    std::uint64_t unfinished = 0;  // the first collective that this rank has not completed
  };

  // All of them outlive this. `exposed`: of the operation under way. `wake`: has whoever drives
  // look again, wherever it sleeps.
  GroupFailure(const Peers& peers, const GroupPositions& positions,
               algorithms::ExposedBuffer& exposed, std::function<void()> wake);
  GroupFailure(const GroupFailure&) = delete;
  GroupFailure& operator=(const GroupFailure&) = delete;

  // Once it is known who the ranks are, before anything else is called: makes, while there is
  // memory, what is said when there is none even for a text.
  void prepare();

  // Whether the group has failed or is closed: then operations end with error().
  bool hasEnded() const { return hasEnded_.load(std::memory_order_acquire); }
  std::optional<Error> error() const;
  // Whether another rank has said, by a message, that the group has failed.
  bool hasNews() const { return hasNews_.load(std::memory_order_acquire); }
  // What another rank has said, if it is not the group's error yet. fail() finds the text of one on
  // this host.
  std::optional<Error> reported() const;
  // Whether a rank that has failed did not complete collective `sequence`.
  bool isSpoiled(std::uint64_t sequence) const;

  // Of this rank's collectives, what a driver has begun, and what went well.
  void noteBegun(std::uint64_t sequence) { begun_.store(sequence, std::memory_order_relaxed); }
  void noteCompleted(std::uint64_t sequence) {
    completed_.store(sequence, std::memory_order_relaxed);
  }

  // Makes `error` the group's, unless it has ended, tells everyone, and closes the wires. May wait
  // for a transport, or for a peer in a shared buffer, for some tenths of a second.
  void fail(const Error& error, const Signature& during = {});
  void learn(const News& news) noexcept;
  // What came from `peer` could not be received: the group fails with that.
  void noteRefusal(int peer, const transport::Refusal& refusal) noexcept;
  // Closes the wires, within `grace` if the peers read what was sent. `isPending`: operations are
  // under way, which end with that this rank has closed the group.
  void leave(bool isPending, milliseconds grace);

  // That this rank cannot go on because of `cause`; if there is no memory for that text, that there
  // is none.
  Error cannotGoOn(const std::exception& cause, const Work& work) const noexcept;
  Error cannotGoOn(const std::exception& cause, const std::function<std::string()>& during,
                   std::uint64_t bytes) const noexcept;
  // That there is no memory, made when there was some.
  const Error& noMemory() const { return *noMemory_; }
  // The group's error as `work` ends with it.
  Error asSeenBy(const Work& work, const Error& error) const;

 private:
  void closeWires(milliseconds grace, transport::Transport::Ending ending);
  [[nodiscard]] std::string letGoOfBuffers();
  bool showToHost(News& news) noexcept;
  void passOn(const News& news) noexcept;
  Error asSeenHere(const News& news) const noexcept;

  const Peers& peers_;
  const GroupPositions& positions_;
  algorithms::ExposedBuffer& exposed_;
  const std::function<void()> wake_;
  std::optional<Error> noMemory_;
  std::atomic<std::uint64_t> begun_{0}, completed_{0};

  std::mutex endMutex_;             // while the group ends; taken before the next
  bool hasLetGoOfBuffers_ = false;  // guarded by endMutex_, like the next
  bool areWiresClosed_ = false;
  mutable std::mutex mutex_;  // guards the next three
  std::optional<Error> error_;
  bool isErrorOfOthers_ = false;  // error_ was met by another rank
  std::optional<News> news_;      // what another host said first

  std::atomic<bool> hasEnded_{
      false};                         // set after error_, when nothing writes into buffers any more
  std::atomic<bool> hasNews_{false};  // set after news_
  std::atomic<std::uint64_t> newsUnfinished_{0};  // of it
};

}  // namespace smd::engine
