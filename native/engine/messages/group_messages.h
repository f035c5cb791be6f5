// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The messages of unknown size of a group (messages.h): which thread moves them, and what ends a
// wait for one. The group's deadline does not apply to them, and the flight record does not list
// them: a rank that serves others may wait for hours, and sees thousands of messages in a minute.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/clock.h"
#include "common/error.h"
#include "common/futex.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/group_failure.h"
#include "engine/group/peers.h"
#include "engine/messages/messages.h"

namespace smd::engine {

class GroupMessages {
 public:
  // The references outlive this. The group has peers, and its mailbox is ready. `bell`: where the
  // threads of this rank sleep. `limit`: the most that heldBytes() may be, zero for no limit.
  GroupMessages(const Peers& peers, const GroupPositions& positions, GroupFailure& failure,
                Doorbell& bell, std::uint64_t limit);
  GroupMessages(const GroupMessages&) = delete;
  GroupMessages& operator=(const GroupMessages&) = delete;

  // Any thread. Everything has been copied when it returns. True: something could not go out at
  // once, and advance() must be called until nothing is left; not if earlier messages need that
  // already. Throws if the group has failed or the peer cannot be reached any more.
  bool post(int peer, std::span<const std::byte> header, std::span<const Segment> segments);
  // Throws if the group has failed or `peer` has gone.
  void requireReachable(int peer) const;
  // The next message that arrives by `end`, or that is there now if `end` is nothing. One thread at
  // a time. Throws the group's error, PeerLost once all messages of a peer that has gone are taken,
  // and Interrupted.
  std::optional<Message> next(std::optional<TimePoint> end);

  // The progress thread calls it while hasUnsent(), without locks: the thread that posted may
  // compute for a long time. Returns whether something is left; sets `moved` if something went out.
  bool advance(bool& moved);
  bool hasUnsent() const { return messages_.hasUnsent(); }
  std::uint64_t heldBytes() { return messages_.heldBytes(); }
  // The wires are closed: frees the messages that no peer has taken.
  void close() { messages_.close(); }

 private:
  class Next;
  class Taking;
  void noteProcessor() const;
  std::optional<Error> goneError(int peer) const;

  const Peers& peers_;
  const GroupPositions& positions_;
  GroupFailure& failure_;
  Doorbell& bell_;
  Messages messages_;
  std::atomic<bool> isTaking_{false};
  bool isExpecting_ = false;  // from all peers; touched by who takes them
};

}  // namespace smd::engine
