// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "engine/messages/messages.h"

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

void registerMessage(nb::module_& module);

}  // namespace smd::bindings
