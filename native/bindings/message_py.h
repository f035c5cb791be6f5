// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/communicator.h"

namespace smd::bindings {

namespace nb = nanobind;

// The Python object of a message that has arrived.
class PyMessage {
 public:
  explicit PyMessage(engine::Message message) : message_(std::move(message)) {}
  const engine::Message& message() const { return message_; }

 private:
  engine::Message message_;
};

// (address, nbytes) of each.
using PySegments = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;

// Lets go of the GIL where the copies take longer than that costs.
void postMessage(engine::Communicator& communicator, int peer, const nb::bytes& header,
                 const PySegments& segments);
// A PyMessage or None. Negative: without a limit. Holds the GIL only to look and to return.
nb::object nextMessage(engine::Communicator& communicator, double timeoutSeconds);

void registerMessage(nb::module_& module);

}  // namespace smd::bindings
