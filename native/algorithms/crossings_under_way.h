// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What is on its way between hosts while the stages of one host go on (one_host/block_pipeline.h).
// What a crossing is: between_hosts/crossings.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/task.h"
#include "transport/mailbox.h"

namespace smd::algorithms {

// Crossings that are under way, in the order in which they were started. Where an operation fails,
// messages may still be on their way into and out of its buffers: so this has to outlive a
// coroutine that an error may end, until the wires are closed.
class Crossings {
 public:
  explicit Crossings(transport::Mailbox& mailbox) : mailbox_(mailbox) {}

  // It begins with the next advance().
  void start(Task crossing) { tasks_.push_back(std::move(crossing)); }
  // Throws what a crossing throws.
  void advance();
  // Of the first ones: those before one that is under way.
  const std::uint64_t& numDone() const { return numDone_; }
  std::size_t numUnderWay() const { return tasks_.size(); }
  std::vector<int> missingRanks() const;

 private:
  transport::Mailbox& mailbox_;
  std::deque<Task> tasks_;
  std::uint64_t numDone_ = 0;
};

}  // namespace smd::algorithms
