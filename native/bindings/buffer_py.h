// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace smd::bindings {

namespace nb = nanobind;

// Where the elements of an array are: valid while the array lives.
struct ArrayMemory {
  std::uintptr_t address;
  std::uint64_t count;  // elements
  int dtype;            // code of a DType
};

// Of a contiguous array in CPU memory. Throws nanobind::value_error for anything else.
ArrayMemory memoryOf(nb::handle array, bool isWritable);

// Adds buffer(object, writable) -> (address, number of elements, dtype code).
void registerBuffer(nanobind::module_& module);

}  // namespace smd::bindings
