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

// What an object with the buffer protocol has exported: as long as this lives, its memory stays
// where it is, and who resizes it gets BufferError. Needs the GIL also at its end.
class HeldBuffer {
 public:
  HeldBuffer() = default;
  ~HeldBuffer() {
    if (isHeld_) PyBuffer_Release(&view_);
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  // Once. False: with Python's error.
  bool hold(PyObject* object, int flags) {
    isHeld_ = PyObject_GetBuffer(object, &view_, flags) == 0;
    return isHeld_;
  }
  const Py_buffer& view() const { return view_; }

 private:
  Py_buffer view_;
  bool isHeld_ = false;
};

// Of a contiguous array in CPU memory; `held` is empty after it if that came by DLPack. Throws
// nanobind::value_error for anything else.
ArrayMemory memoryOf(nb::handle array, bool isWritable, HeldBuffer& held);

// Adds buffer(object, writable) -> (address, number of elements, dtype code).
void registerBuffer(nanobind::module_& module);

}  // namespace smd::bindings
