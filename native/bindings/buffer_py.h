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

// Of a contiguous array in CPU memory. One that comes by DLPack is replaced by what holds its
// memory, since that may belong to what it has exported alone. Throws nanobind::value_error for
// anything else.
ArrayMemory memoryOf(nb::object& array, bool isWritable, HeldBuffer& held);

// What keeps the memory of `owner` where it is: of an object with a buffer, which is not to be
// resized meanwhile, a view; of one with DLPack, what it has exported; of what is in tuples and
// lists, up to `depth` of them in each other, of each. To be made before the memory is looked at,
// and to be used in its place.
nb::object holderOf(nb::object owner, int depth);
inline constexpr int kListsOfArrays = 2;  // the arguments of a call, each an array or a list

// Adds hold(arrays) and buffer(array, writable) -> (address, number of elements, dtype code).
void registerBuffer(nanobind::module_& module);

}  // namespace smd::bindings
