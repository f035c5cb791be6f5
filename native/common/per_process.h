// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What there is one of in each process.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/fork.h"

namespace smd {

// One T, made by its default constructor when first asked for; of static storage duration. It is
// never destroyed: operations may still complete while static destructors run. A forked child gets
// one of its own, as the parent's threads do not exist there and its locks may be held for ever;
// so there is no lock here either, and two threads that ask first may both make one: one is kept.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // Safe from any thread, but for signal handlers. Throws what making a T throws.
  T& get() {
    Made* current = made_.load(std::memory_order_acquire);
    while (current == nullptr || isForkedChild(current->generation)) {
      auto* fresh = new Made;
      if (made_.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
        return fresh->value;
      }
      delete fresh;
    }
    return current->value;
  }

 private:
  struct Made {
    const std::uint64_t generation = forkGeneration();
    T value;
  };

  std::atomic<Made*> made_{nullptr};
};

}  // namespace smd
