// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers on their way between hosts. Words:
//   lane       ranks, one or more on each host, that pass data to each other between hosts
//   crossing   what a lane does with one buffer: the steps of one of step_tables/between_hosts.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "algorithms/request.h"
#include "step_tables/between_hosts.h"

namespace smd::algorithms {

// Of each host the first `width` ranks, or all there are. A rank hears of each other host from one
// rank of its lane there, and tells as many as it takes for all to hear.
class Lane {
 public:
  // As the rank at `position` of this host sees it; `first`: a rank that its host begins with here,
  // the others following in turn.
  Lane(const hosts::Hosts& hosts, int width, int position, int first = -1);
  Lane(const hosts::Hosts& hosts, int width) : Lane(hosts, width, hosts.position) {}

  int numHosts() const { return hosts_->count(); }
  int self() const { return hosts_->self; }
  bool isIn() const { return place_ < widthAt(hosts_->self); }
  int place() const { return place_; }  // of the rank in its host's part, which begins at 0
  int heardFrom(int host) const { return rankAt(host, place_ % widthAt(host)); }
  std::vector<int> toldAt(int host) const;

 private:
  int widthAt(int host) const { return std::min(width_, hosts_->sizeOf(host)); }
  int rankAt(int host, int place) const;

  const hosts::Hosts* hosts_;
  int width_;
  int turnedHost_ = -1;  // begins at
  int turnedBy_ = 0;     // this position
  int place_;
};

// What crosses: parts (parts.h) to begin with, of which a reducing step makes one or the result.
struct Crossing {
  const std::byte* source;  // this host's part
  std::byte* target;        // the result or, on the way, what there is of it; may be `source`, but
                            // not of wide parts
  std::uint64_t count;      // elements
  int segments;             // that the table cuts it into
  std::uint64_t firstTag;   // of as many as the table has steps, used by no other crossing
};

// Met once a counter has reached a value.
class Reached final : public Condition {
 public:
  Reached(const std::uint64_t& counter, std::uint64_t least) : counter_(&counter), least_(least) {}
  bool isMet() override { return *counter_ >= least_; }
  std::vector<int> missingRanks() override { return {}; }

 private:
  const std::uint64_t* counter_;
  std::uint64_t least_;
};

// Ready to receive from the start: what comes from a host that is ahead goes straight to its place.
// Reads the source, and sends, from `turn` on. `table` and what is in `crossing` and `turn` must
// outlive the task.
Task cross(const Context& context, Lane lane, const step_tables::Table& table, Crossing crossing,
           Reached turn);

// Messages to and from other hosts that do not make up one buffer.
struct Outgoing {
  int peer;
  const std::byte* data;
  std::uint64_t bytes;
};
struct Incoming {
  int peer;
  std::byte* data;
  std::uint64_t bytes;
};
struct Parcels {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
};
// All at once: ready to receive from the start, sends from `turn` on. What `turn` counts must
// outlive the task.
Task pass(const Context& context, Parcels parcels, std::uint64_t tag, Reached turn);

}  // namespace smd::algorithms
