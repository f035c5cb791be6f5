// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/messages/group_messages.h"

#include <sched.h>

#include <new>
#include <utility>

#include "engine/group/drive.h"

namespace smd::engine {

GroupMessages::GroupMessages(const Peers& peers, const GroupPositions& positions,
                             GroupFailure& failure, Doorbell& bell, std::uint64_t limit)
    : peers_(peers),
      positions_(positions),
      failure_(failure),
      bell_(bell),
      messages_(*peers.mailbox, peers.membership, peers.rank, peers.arena, limit) {}

// A wait for the next message.
class GroupMessages::Next final : public Driven {
 public:
  explicit Next(GroupMessages& group) : group_(group) {}

  std::optional<Message> message;
  std::optional<Error> error;

  bool step() override {
    return ends([this] {
      if (take()) return true;
      if (group_.failure_.hasEnded()) {
        error = group_.failure_.error();
        return true;
      }
      group_.peers_.mailbox->poll();
      return take();
    });
  }
  bool stepOrDiagnose() override {
    return ends([this] { return step() || diagnose(); });
  }
  TimePoint deadline() const override { return TimePoint::max(); }
  bool awaitsOtherHosts() const override { return group_.peers_.membership.localRanks.size() == 1; }
  bool isInTheWay() const override {
    return group_.peers_.memory && group_.peers_.memory->hasPeerOn(sched_getcpu());
  }

 private:
  bool take() {
    message = group_.messages_.take();
    return message.has_value();
  }

  bool diagnose() {
    std::optional<Error> reason = group_.failure_.reported();
    if (!reason) reason = group_.goneError(transport::kAnyPeer);
    if (!reason) return false;
    // Only now it is sure that nothing more will come. What came before is delivered first.
    group_.peers_.mailbox->catchUp();
    if (take()) return true;
    group_.failure_.fail(*reason);
    error = group_.failure_.error();
    return true;
  }

  // A broken message or a lack of memory ends the group, as in any other operation.
  template <class Function>
  bool ends(const Function& function) {
    try {
      return function();
    } catch (const Error& caught) {
      group_.failure_.fail(caught);
    } catch (const std::exception& caught) {
      group_.failure_.fail(
          group_.failure_.cannotGoOn(caught, [] { return std::string("next_message"); }, 0));
    }
    error = group_.failure_.error();
    return true;
  }

  GroupMessages& group_;
};

void GroupMessages::noteProcessor() const {
  if (!peers_.memory) return;
  std::atomic<int>& noted = peers_.memory->mine().processor;
  const int processor = sched_getcpu();
  if (noted.load(std::memory_order_relaxed) != processor) {  // otherwise peers keep the cache line
    noted.store(processor, std::memory_order_relaxed);
  }
}

void GroupMessages::requireReachable(int peer) const {
  std::optional<Error> error = failure_.error();
  if (!error) error = goneError(peer);
  if (error) throw peers_.withPrefix("post_message", *error);
}

bool GroupMessages::post(int peer, std::span<const std::byte> header,
                         std::span<const Segment> segments) {
  noteProcessor();
  // Only a thread that waits lets the group fail: that may take a while, and a post must not wait.
  requireReachable(peer);
  Messages::Posted posted = Messages::Posted::kFailed;
  try {
    posted = messages_.post(peer, header, segments);
  } catch (const std::bad_alloc& error) {
    // The message will never come, and the peer may wait for it.
    const auto what = [peer] { return "post_message to rank " + std::to_string(peer); };
    failure_.fail(failure_.cannotGoOn(error, what, bodyBytes(segments) + header.size()));
    requireReachable(peer);
  }
  if (posted != Messages::Posted::kFailed) return posted == Messages::Posted::kLeft;
  requireReachable(peer);
  throw peers_.withPrefix("post_message",
                          Error(ErrorKind::kPeerLost,
                                positions_.describePeer(peer) +
                                    " cannot be reached any more; expected it to stay until every "
                                    "rank is done. Read its log."));
}

// One thread at a time takes messages; a second one is an error of the caller.
class GroupMessages::Taking {
 public:
  explicit Taking(GroupMessages& group) : isTaking_(group.isTaking_) {
    if (!isTaking_.exchange(true, std::memory_order_acquire)) return;
    throw Error(ErrorKind::kConfiguration,
                "two threads of rank " + std::to_string(group.peers_.rank) +
                    " wait for the next message of group '" + group.peers_.name +
                    "'; expected one at a time. Let one thread take them and hand them on.");
  }
  ~Taking() { isTaking_.store(false, std::memory_order_release); }
  Taking(const Taking&) = delete;
  Taking& operator=(const Taking&) = delete;

 private:
  std::atomic<bool>& isTaking_;
};

std::optional<Message> GroupMessages::next(std::optional<TimePoint> end) {
  noteProcessor();
  const Taking taking(*this);
  // A message may come from any rank, so the death of each rank must be noticed.
  if (!isExpecting_) {
    for (int peer = 0; peer < peers_.size; ++peer) {
      if (peer != peers_.rank) peers_.mailbox->expect(peer);
    }
    isExpecting_ = true;
  }
  Next next(*this);
  if (!end) {
    next.stepOrDiagnose();
  } else {
    const SpinBudget budget = peers_.areAllLocal ? patientSpinBudget() : kBetweenHosts;
    // An interruption loses nothing: a message that comes later is the next one.
    if (drive(next, {.end = *end}, budget, {bell_, *peers_.mailbox}) == Drive::kInterrupted) {
      throw Interrupted{};
    }
  }
  if (next.error) throw peers_.withPrefix("next_message", *next.error);
  return std::move(next.message);
}

bool GroupMessages::advance(bool& moved) {
  try {
    peers_.mailbox->poll();
    if (messages_.sweep()) {
      moved = true;
      return messages_.hasUnsent();
    }
    std::optional<Error> error = failure_.reported();
    if (!error && !peers_.gone().empty()) {
      for (const int peer : messages_.unsentTo()) {
        if (!error) error = goneError(peer);
      }
    }
    if (!error) return true;
    failure_.fail(*error);  // closes the wires, which ends every ticket
  } catch (const std::exception& error) {
    failure_.fail(
        failure_.cannotGoOn(error, [] { return std::string("the messages that were posted"); }, 0));
  }
  moved = messages_.sweep() || moved;
  return messages_.hasUnsent();
}

// The error that a rank has gone: `peer`, or any rank that did not say goodbye.
std::optional<Error> GroupMessages::goneError(int peer) const {
  for (const auto& [rank, how] : peers_.gone()) {
    const bool leftInOrder = hasLeftInOrder(how);
    if (leftInOrder && peer != transport::kAnyPeer && rank != peer) continue;
    if (failure_.hasNews()) return failure_.reported();  // that rank said why
    return Error(ErrorKind::kPeerLost,
                 positions_.describePeer(rank) + " " + how +
                     " while messages were exchanged; it was expected to stay until every rank "
                     "is done. Read the log of " +
                     peers_.membership.nameOf(rank) + " first. This group cannot be used again." +
                     positions_.whereRanksAre({rank}));
  }
  return std::nullopt;
}

}  // namespace smd::engine
