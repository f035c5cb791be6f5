// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A group of ranks that make the same collective calls in the same order. This class keeps the
// queue of their operations, and decides which thread drives it (docs/thread_model.md). In the
// order in which to read it:
//
//   join()            makes the group: bootstrap.h, peers.h
//   collective()      makes an operation (work.h), puts it in the queue, and drives it or leaves it
//                     to the progress thread (progress.h)
//   driveQueue()      drives the queue on the caller's thread: drive.h
//   start(), step()   choose the algorithm, and take the operation as far as it gets
//   finish()          completes it
//   close()           ends the group
//
// What does not concern the queue is in parts with locks of their own, which do not know this
// class: where the ranks are (group_positions.h), how the group fails (group_failure.h), what keeps
// an operation from completing (diagnosis.h), and messages of unknown size (group_messages.h).
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/choose/select.h"
#include "engine/diagnostics/diagnosis.h"
#include "engine/diagnostics/flight_record.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/bootstrap.h"
#include "engine/group/drive.h"
#include "engine/group/group_failure.h"
#include "engine/group/options.h"
#include "engine/group/peers.h"
#include "engine/group/progress.h"
#include "engine/group/work.h"
#include "engine/messages/group_messages.h"
#include "transport/mailbox.h"
#include "transport/shm/arena.h"

namespace smd::engine {

// kBrief: like kAsync, but the calling thread carries the operation out for as long as it need not
// sleep. For a caller that has nothing else to do, that is quicker than the progress thread.
enum class Mode { kBlocking, kAsync, kBrief };

class Communicator final : public Advancing, public std::enable_shared_from_this<Communicator> {
 public:
  static std::shared_ptr<Communicator> create(int rank, int worldSize, const ExchangeFn& exchange,
                                              EngineOptions options, std::string name = "default");
  ~Communicator() override;

  int rank() const { return peers_.rank; }
  int size() const { return peers_.size; }
  const std::string& name() const { return peers_.name; }
  // The interfaces through which other hosts are reached, for people; empty if there are no others.
  const std::string& interfaces() const { return interfaces_; }
  // The link between hosts that the cost model assumes: the same on all ranks.
  const Link& link() const { return topology_.link; }
  const Membership& membership() const { return peers_.membership; }
  bool sharesMemoryWith(int peer) const { return peers_.sharesMemoryWith(peer); }

  // Starts an operation. kBlocking: returns when it is complete (throws Interrupted if the user
  // interrupts); its error, if any, is in the Work. `timeout` zero: the communicator's.
  std::shared_ptr<Work> collective(algorithms::Request&& request, Mode mode, nanoseconds timeout);
  // Waits for an operation of this communicator, until `end` at most. Where the progress thread has
  // it, and is asleep, the calling thread takes it over.
  using Drive = engine::Drive;
  Drive wait(Work& work, TimePoint end);
  // peer: transport::kAnyPeer to receive from the rank that sends first.
  std::shared_ptr<Work> send(const std::byte* data, std::uint64_t count, DType dtype, int peer,
                             std::uint64_t tag, Mode mode, nanoseconds timeout);
  std::shared_ptr<Work> receive(std::byte* data, std::uint64_t count, DType dtype, int peer,
                                std::uint64_t tag, Mode mode, nanoseconds timeout);

  // Messages of unknown size, without tags (messages.h).
  //
  // Sends a message to `peer`: a header, and a body made of `segments`. Copies everything once, and
  // never waits for the peer. Any thread. Throws if the group has failed or is closed, if the peer
  // has gone, or if there is no such peer.
  void postMessage(int peer, std::span<const std::byte> header, std::span<const Segment> segments);
  // The oldest message that has arrived whole, from any rank; messages of one peer come in the
  // order in which it posted them. Nothing if none has come by `end`; then nothing has changed. One
  // thread at a time. The group's own deadline and stall reports do not apply. Throws the group's
  // error, and PeerLost once a peer has gone, after its last whole message has been delivered.
  // Throws Interrupted; the group can be used further then.
  std::optional<Message> nextMessage(TimePoint end);

  // Memory that all ranks can reach. If the buffers of all ranks lie in such memory, collectives
  // use them without a copy. Not a collective. Null where there is no such memory: one rank,
  // several hosts, TCP, no room, a group that is closed or has failed.
  std::shared_ptr<transport::shm::SharedBuffer> allocateShared(
      std::size_t bytes, transport::shm::Contents contents = transport::shm::Contents::kZeros);

  // Whether a collective, or an asynchronous send or receive, that is not complete reads or writes
  // any byte of [begin, begin + bytes). False in a forked child, where
  // no operation is under way.
  bool isInUse(const std::byte* begin, std::size_t bytes);

  // The algorithm that would be chosen, and why. (Sums of 16-bit floats may differ: `isRoundedOnce`
  // in select.h.)
  Choice choose(OpKind kind, std::uint64_t payloadBytes) const;

  // Every rank's pending and later operations fail with `reason`.
  void abort(const std::string& reason);
  // Whether this rank knows that the group has failed. An operation would raise the reason.
  bool hasFailed() const;
  // Says goodbye and frees everything. Pending operations of this rank fail. Idempotent.
  void close();

  // The last operations of this rank. Any thread.
  GroupRecord flightRecord();
  // Lets the other ranks see that this process waits in another group; one thread at a time.
  void showElsewhere(const FlightNote& where) { positions_.showElsewhere(where); }

  Result advance() override;
  Doorbell& bell() override;

  // Whether this thread is in a signal handler that has interrupted a call of this group. That call
  // goes on only after the handler, so a handler that waited for the group would wait for ever.
  bool isInterruptedHere() const;
  // Throws in a forked child of the process that made the group.
  void checkUsable() const;

 private:
  Communicator(int rank, int worldSize, EngineOptions options, std::string name);
  void join(const ExchangeFn& exchange);
  // Learns how fast the network between the hosts is.
  void learnLink(const ExchangeFn& exchange);

  void requireMemory(const algorithms::Request& request) const;
  std::shared_ptr<Work> makeWork(algorithms::Request&& request, nanoseconds timeout);
  // Ends the group, if there are other ranks: they would wait for a call that this rank has not
  // made.
  [[noreturn]] void failCall(const Signature& signature, std::uint64_t bytes,
                             const std::exception& cause);
  // Throws if a wait for `signature` on this thread would wait for this thread itself.
  void requireMayWait(const Signature& signature) const;
  void requireMayWait(const std::function<std::string()>& what) const;
  Task start(Work& work);
  void requireOpen() const;
  void requireUsable(std::string_view operation, int peer, bool mayBeAny);
  std::shared_ptr<Work> runIndependently(algorithms::Request request, std::uint64_t count,
                                         DType dtype, int peer, std::uint64_t tag, Mode mode,
                                         nanoseconds timeout);

  // Has the driver look again, wherever it sleeps.
  void wake();
  class DrivenWork;
  Drive driveInline(Work& work, const Until& until);
  Drive driveQueue(std::unique_lock<std::mutex>& lock, const Work& work, const Until& until);
  void giveUp(Work& work);
  bool step(Work& work);
  bool stepOrDiagnose(Work& work);
  void checkForStrays(const Work& work);
  void finish(Work& work, std::optional<Error> error);
  void handOver(std::unique_lock<std::mutex>& lock);
  bool leaveToProgressThread();

  bool hasUnsentMessages() const { return messages_ != nullptr && messages_->hasUnsent(); }
  void letSendsOut();
  void onControl(int peer, const transport::FrameHeader& header, std::string_view payload);

  const EngineOptions options_;
  const std::uint64_t generation_;
  Overrides overrides_;
  Doorbell ownBell_;  // used if there is no region
  Peers peers_;
  std::string interfaces_;
  Topology topology_;
  algorithms::ExposedBuffer exposed_;  // of the operation under way
  // Parts that know of this rank's peers, and not of the queue. Each has its own locks.
  GroupPositions positions_;                 // where the ranks are
  GroupFailure failure_;                     // how the group ends
  Diagnosis diagnosis_;                      // what keeps an operation from completing
  std::unique_ptr<GroupMessages> messages_;  // null: one rank, there is nobody to send to

  std::mutex mutex_;  // guards what follows
  enum class Driver { kNone, kInline, kProgress } driver_ = Driver::kNone;
  bool isStepping_ = false;  // the progress thread is inside an operation, without the lock
  std::deque<std::shared_ptr<Work>> queue_;       // collectives, the first one under way
  std::list<std::shared_ptr<Work>> independent_;  // asynchronous sends and receives
  std::uint64_t sequence_ = 0;
  bool closed_ = false;

  std::uint64_t copyAhead_ = 1, copyAheadInBackground_ = 1;
  std::uint64_t blocksDone_ = 0;  // touched by the driver only
  algorithms::Scratch scratch_;   // touched by the driver only
  // The last choice, which usually comes again; touched by the driver only.
  struct LastChoice {
    OpKind kind{};
    std::uint64_t bytes = 0;
    bool isRoundedOnce = false;
    Choice choice{};
  };
  std::optional<LastChoice> lastChoice_;
};

}  // namespace smd::engine
