// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// From engine errors to Python exceptions. Each communicator may bring its own classes.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <string_view>

#include "common/error.h"

namespace smd::bindings {

namespace nb = nanobind;

// Text of the engine, which may hold what another process or host sent: bytes that are no UTF-8 are
// replaced rather than turned into another error.
nb::str toStr(std::string_view text);

// One exception class per ErrorKind.
class ErrorClasses {
 public:
  // `mapping`: kind name -> class; what it lacks comes from smdistributed._common.errors.
  explicit ErrorClasses(nb::handle mapping);

  nb::object toPython(const Error& error) const;
  [[noreturn]] void raise(const Error& error) const;

 private:
  std::array<nb::object, kNumErrorKinds> classes_;
};

}  // namespace smd::bindings
