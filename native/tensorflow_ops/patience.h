// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets an operation that waits return after a while (tickets.h says why).
#pragma once

#include <chrono>
#include <memory>

namespace smd::tensorflow_ops {

class Waiting {
 public:
  virtual ~Waiting() = default;
  // TensorFlow is to wait no longer. Called on the thread that keeps the time. False: not now; then
  // it is called again.
  virtual bool giveUp() noexcept = 0;
};

// Once `patience` is over, or soon after. Not at all if there is no room for the thread that keeps
// the time; that ends when nobody waits.
void giveUpAfter(std::chrono::milliseconds patience, std::weak_ptr<Waiting> waiting) noexcept;

}  // namespace smd::tensorflow_ops
