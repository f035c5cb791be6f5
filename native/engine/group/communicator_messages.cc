// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages of unknown size: who moves them, and what ends a wait for them. They have no deadline of
// the group's and no entry in the flight record: whoever serves others may wait for hours, and sees
// thousands of them in a minute.
#include <sched.h>

#include <new>
#include <utility>

#include "engine/group/communicator.h"

namespace smd::engine {

// A wait for the next message.
class Communicator::NextMessage final : public Driven {
 public:
  explicit NextMessage(Communicator& communicator) : communicator_(communicator) {}

  std::optional<Message> message;
  std::optional<Error> error;

  bool step() override {
    return ends([this] {
      if (take()) return true;
      if (communicator_.failure_.hasEnded()) {
        error = communicator_.failure_.error();
        return true;
      }
      communicator_.peers_.mailbox->poll();
      return take();
    });
  }
  bool stepOrDiagnose() override {
    return ends([this] { return step() || diagnose(); });
  }
  TimePoint deadline() const override { return TimePoint::max(); }
  bool awaitsOtherHosts() const override {
    return communicator_.peers_.membership.localRanks.size() == 1;
  }
  bool isInTheWay() const override {
    return communicator_.peers_.memory && communicator_.peers_.memory->hasPeerOn(sched_getcpu());
  }

 private:
  bool take() {
    message = communicator_.messages_->take();
    return message.has_value();
  }

  bool diagnose() {
    std::optional<Error> reason = communicator_.failure_.reported();
    if (!reason) reason = communicator_.goneError(transport::kAnyPeer);
    if (!reason) return false;
    // It is known only now that nothing more will come: what came before is delivered first.
    communicator_.peers_.mailbox->catchUp();
    if (take()) return true;
    communicator_.failure_.fail(*reason);
    error = communicator_.failure_.error();
    return true;
  }

  // A broken message or a lack of memory ends the group, as in any other operation.
  template <class Function>
  bool ends(const Function& function) {
    try {
      return function();
    } catch (const Error& caught) {
      communicator_.failure_.fail(caught);
    } catch (const std::exception& caught) {
      communicator_.failure_.fail(
          communicator_.failure_.cannotGoOn(caught, [] { return std::string("next_message"); }, 0));
    }
    error = communicator_.failure_.error();
    return true;
  }

  Communicator& communicator_;
};

void Communicator::noteProcessor() {
  if (!peers_.memory) return;
  std::atomic<int>& noted = peers_.memory->mine().processor;
  const int processor = sched_getcpu();
  if (noted.load(std::memory_order_relaxed) != processor) {  // else peers keep the line
    noted.store(processor, std::memory_order_relaxed);
  }
}

void Communicator::postMessage(int peer, std::span<const std::byte> header,
                               std::span<const Segment> segments) {
  requireUsable("post_message", peer, false);
  noteProcessor();
  // The group fails for whoever waits; who only posts must not wait for what that takes.
  const auto requireReachable = [&] {
    std::optional<Error> error = failure_.error();
    if (!error) error = goneError(peer);
    if (error) throw peers_.withPrefix("post_message", *error);
  };
  requireReachable();
  Messages::Posted posted = Messages::Posted::kFailed;
  try {
    posted = messages_->post(peer, header, segments);
  } catch (const std::bad_alloc& error) {
    // It will never come, and the peer may wait for it.
    const auto what = [peer] { return "post_message to rank " + std::to_string(peer); };
    failure_.fail(failure_.cannotGoOn(error, what, bodyBytes(segments) + header.size()));
    requireReachable();
  }
  switch (posted) {
    case Messages::Posted::kDone:
      return;
    case Messages::Posted::kLeft:
      if (!leaveToProgressThread()) requireReachable();
      return;
    case Messages::Posted::kFailed:
      break;
  }
  requireReachable();
  throw peers_.withPrefix(
      "post_message",
      Error(ErrorKind::kPeerLost, positions_.describePeer(peer) +
                                      " cannot be reached any more; expected it to "
                                      "stay until every rank is done. Read its log."));
}

std::optional<Message> Communicator::nextMessage(TimePoint end) {
  requireUsable("next_message", transport::kAnyPeer, true);
  const bool waits = end > Clock::now();
  if (waits) requireMayWait([] { return std::string("the next message"); });
  noteProcessor();
  if (isTakingMessage_.exchange(true, std::memory_order_acquire)) {
    throw Error(ErrorKind::kConfiguration,
                "two threads of rank " + std::to_string(peers_.rank) +
                    " wait for the next message of group '" + peers_.name +
                    "'; expected one at a time. Let one thread take them and hand them on.");
  }
  struct Taking {
    std::atomic<bool>& flag;
    ~Taking() { flag.store(false, std::memory_order_release); }
  } const taking{isTakingMessage_};
  // From everyone at any time: so the death of each is to be noticed.
  if (!isExpectingMessages_) {
    for (int peer = 0; peer < peers_.size; ++peer) {
      if (peer != peers_.rank) peers_.mailbox->expect(peer);
    }
    isExpectingMessages_ = true;
  }
  NextMessage next(*this);
  if (!waits) {
    next.stepOrDiagnose();
  } else {
    const SpinBudget budget = peers_.areAllLocal ? patientSpinBudget() : kBetweenHosts;
    // An interruption harms nothing: the message, should it come, is the next one.
    if (drive(next, {.end = end}, budget, {bell(), *peers_.mailbox}) == Drive::kInterrupted) {
      throw Interrupted{};
    }
  }
  if (next.error) throw peers_.withPrefix("next_message", *next.error);
  return std::move(next.message);
}

// On the progress thread, without locks, if hasUnsentMessages(): whoever posted may compute for
// long. Returns whether something is left to do.
bool Communicator::advanceMessages(bool& moved) {
  try {
    peers_.mailbox->poll();
    if (messages_->sweep()) {
      moved = true;
      return messages_->hasUnsent();
    }
    std::optional<Error> error = failure_.reported();
    if (!error && !peers_.gone().empty()) {
      for (const int peer : messages_->unsentTo()) {
        if (!error) error = goneError(peer);
      }
    }
    if (!error) return true;
    failure_.fail(*error);  // closes the wires, which ends every ticket
  } catch (const std::exception& error) {
    failure_.fail(
        failure_.cannotGoOn(error, [] { return std::string("the messages that were posted"); }, 0));
  }
  moved = messages_->sweep() || moved;
  return messages_->hasUnsent();
}

// That a rank has gone: one that did not say goodbye, or `peer`.
std::optional<Error> Communicator::goneError(int peer) {
  for (const auto& [rank, how] : peers_.gone()) {
    const bool leftInOrder = hasLeftInOrder(how);
    if (leftInOrder && peer != transport::kAnyPeer && rank != peer) continue;
    if (failure_.hasNews()) return failure_.reported();  // it said why
    return Error(ErrorKind::kPeerLost,
                 positions_.describePeer(rank) + " " + how +
                     " while messages were exchanged; it was expected to stay until every rank "
                     "is done. Read the log of rank " +
                     std::to_string(rank) + " first. This group cannot be used again." +
                     positions_.whereRanksAre({rank}));
  }
  return std::nullopt;
}

}  // namespace smd::engine
