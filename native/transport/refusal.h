// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Why the bytes of a peer cannot be received. Plain data: it must be possible to say that there is
// no memory when there is none.
#pragma once

#include <cstdint>
#include <string>

#include "transport/transport.h"

namespace smd::transport {

struct Refusal {
  enum class Reason : std::uint8_t {
    kTooLong,         // above longestFrame() of its channel
    kUnknownChannel,  // neither a channel nor a mark
    kUnknownKind,     // or one that this channel or length cannot have
    kBadTag,          // one that this channel cannot have
    kNotCleared,      // a payload that was not announced, or that nobody cleared
    kBeyondWindow,    // more than may be sent, or announced, at once
    kAfterGoodbye,    // bytes behind the last ones
    kOverrun,         // a ring whose counters cannot be true
    kNoMemory,        // nowhere to put the payload of `header`
    // More announcements than Windows::kMostAnnounced: of all ranks together.
    kTooManyAnnounced,
  };
  Reason reason = Reason::kNoMemory;
  FrameHeader header;  // of the frame that is refused; of kAfterGoodbye and kOverrun none

  // Whether the peer is at fault. Otherwise there is no room here: a wait for it would have helped.
  bool isOfThePeer() const {
    return reason != Reason::kNoMemory && reason != Reason::kTooManyAnnounced;
  }
  // For people: "it ...", where "it" is the peer. Needs memory.
  std::string text() const;
  // Of kNoMemory, for people: what there was none for, of `peer`: "for the 10 bytes that ...".
  // Needs memory.
  std::string wanted(const std::string& peer) const;
};

}  // namespace smd::transport
