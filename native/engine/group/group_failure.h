// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a group ends: on all ranks with the first error that any of them meets, or because this rank
// closes the group. The first error wins and stays. Before an operation ends with it, the wires are
// closed and the shared buffers withdrawn: so nothing writes into a buffer that belongs to the
// caller again.
//
//   fail()    this rank has met an error. It becomes the error of the group; all ranks are told.
//   learn()   another rank has said that the group has failed. The news is passed on at once. The
//             next thread that drives an operation makes it the error of the group, by fail(): to
//             close the wires may take a while, and the thread that receives must not wait.
//   leave()   this rank closes the group.
//
// What an error says of a peer that is lost, or of ranks that disagree, is written in
// engine/diagnostics/diagnosis.cc.
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

// Any thread may call any of it.
class GroupFailure {
 public:
  // What ranks tell each other when the group fails.
  struct News {
    Error error;
    Signature during;              // the collective in which a rank met it; sequence 0: none
    std::uint64_t unfinished = 0;  // the first collective that the rank has not completed
  };

  // All arguments outlive this. `exposed`: the buffer of the operation under way. `wake` has
  // drivers look again, wherever they sleep.
  GroupFailure(const Peers& peers, const GroupPositions& positions,
               algorithms::ExposedBuffer& exposed, std::function<void()> wake);
  GroupFailure(const GroupFailure&) = delete;
  GroupFailure& operator=(const GroupFailure&) = delete;

  // Once it is known who the ranks are, and before anything else is called. Makes the error that is
  // used when there is no memory left to make one.
  void prepare();

  // Whether the group has failed or is closed: then operations end with error().
  bool hasEnded() const { return hasEnded_.load(std::memory_order_acquire); }
  std::optional<Error> error() const;
  // Whether another rank has said, by a message, that the group has failed.
  bool hasNews() const { return hasNews_.load(std::memory_order_acquire); }
  // What another rank has said. If that rank is on this host the text is a stand-in, and fail()
  // finds the real one.
  std::optional<Error> reported() const;
  // Whether a rank that has failed did not complete collective `sequence`.
  bool isSpoiled(std::uint64_t sequence) const;

  // The last collective that a driver of this rank has begun, and the last that succeeded.
  void noteBegun(std::uint64_t sequence) { begun_.store(sequence, std::memory_order_relaxed); }
  void noteCompleted(std::uint64_t sequence) {
    completed_.store(sequence, std::memory_order_relaxed);
  }

  // Makes `error` the error of the group, unless the group has ended; tells all ranks, and closes
  // the wires. May wait some tenths of a second for a transport, or for a peer that writes into a
  // shared buffer.
  void fail(const Error& error, const Signature& during = {});
  void learn(const News& news) noexcept;
  // `peer` has sent what cannot be received: the group fails.
  void noteRefusal(int peer, const transport::Refusal& refusal) noexcept;
  // Closes the wires; sends go out first, for at most `grace`. `isPending`: operations are under
  // way. They end with the error that this rank has closed the group.
  void leave(bool isPending, milliseconds grace);

  // The error of a rank that cannot go on because of `cause`. noMemory() if there is no memory for
  // its text.
  Error cannotGoOn(const std::exception& cause, const Work& work) const noexcept;
  Error cannotGoOn(const std::exception& cause, const std::function<std::string()>& during,
                   std::uint64_t bytes) const noexcept;
  // The error that there is no memory; made when there was some.
  const Error& noMemory() const { return *noMemory_; }
  // The text of the group's `error` with which `work` ends.
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

  std::mutex endMutex_;             // held while the group ends; taken before mutex_
  bool hasLetGoOfBuffers_ = false;  // guarded by endMutex_, like the next
  bool areWiresClosed_ = false;
  mutable std::mutex mutex_;  // guards the next three
  std::optional<Error> error_;
  bool isErrorOfOthers_ = false;  // error_ was met by another rank
  std::optional<News> news_;      // what another host said first

  std::atomic<bool> hasEnded_{
      false};                         // set after error_, when nothing writes into buffers any more
  std::atomic<bool> hasNews_{false};  // set after news_
  std::atomic<std::uint64_t> newsUnfinished_{0};  // the `unfinished` of news_
};

}  // namespace smd::engine
