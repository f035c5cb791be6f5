// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The messages of unknown size of a group (messages.h): who moves them, and what ends a wait for
// them. They have no deadline of the group's and no entry in the flight record: whoever serves
// others may wait for hours, and sees thousands of them in a minute.
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
  // All of them outlive this, and are ready; there are peers. `bell`: where this rank sleeps.
  // `limit`: of heldBytes(), zero for none.
  GroupMessages(const Peers& peers, const GroupPositions& positions, GroupFailure& failure,
                Doorbell& bell, std::uint64_t limit);
  GroupMessages(const GroupMessages&) = delete;
  GroupMessages& operator=(const GroupMessages&) = delete;

  // Any thread. All has been copied when it returns. Whether somebody must call advance() until
  // nothing is left, and nobody had to before. Throws that the peer cannot be reached any more.
  bool post(int peer, std::span<const std::byte> header, std::span<const Segment> segments);
  // Throws the group's error, or that `peer` has gone.
  void requireReachable(int peer) const;
  // The next message, by one thread at a time: what is there by `end`, or now. Throws the group's
  // error, that a peer has gone once what it sent has been taken, and Interrupted.
  std::optional<Message> next(std::optional<TimePoint> end);

  // By the progress thread, without locks, if hasUnsent(): whoever posted may compute for long.
  // Returns whether something is left to do; sets `moved` if something went out.
  bool advance(bool& moved);
  bool hasUnsent() const { return messages_.hasUnsent(); }
  std::uint64_t heldBytes() { return messages_.heldBytes(); }
  // The wires are closed: what has not been taken is let go of.
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
