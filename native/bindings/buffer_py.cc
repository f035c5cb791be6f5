// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// From any array in CPU memory to address, size and type. The buffer protocol first (NumPy, array,
// bytearray, memoryview: some 50 ns), then DLPack (everything else, bfloat16 included).
#include "bindings/buffer_py.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>

#include "common/types.h"

namespace smd::bindings {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw nb::value_error(text.c_str()); }

// What an object with DLPack has exported: its memory lives as long as this, maybe no longer.
struct HeldExport {
  nb::object owner;
  nb::ndarray<nb::ro> array;
  bool isReadOnly;
};

// Of what hold() made, that of its argument.
std::string typeName(nb::handle array) {
  nb::object object = nb::borrow(array);
  HeldExport* held = nullptr;
  if (nb::try_cast(object, held) && held != nullptr) object = held->owner;
  if (PyMemoryView_Check(object.ptr()) != 0) {
    const nb::object base = nb::getattr(object, "obj", nb::none());  // none if it was released
    if (!base.is_none()) object = base;
  }
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

// struct-module format characters, native or little-endian; -1 if it is none of ours.
int dtypeOfFormat(const char* format, Py_ssize_t itemSize) {
  if (format == nullptr) return static_cast<int>(DType::kUInt8);
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 'Z') {
    if (format[1] == 'f') return static_cast<int>(DType::kComplex64);
    return format[1] == 'd' ? static_cast<int>(DType::kComplex128) : -1;
  }
  if (format[0] == '\0' || format[1] != '\0') return -1;
  const auto pick = [itemSize](DType one, DType two, DType four, DType eight) {
    switch (itemSize) {
      case 1:
        return static_cast<int>(one);
      case 2:
        return static_cast<int>(two);
      case 4:
        return static_cast<int>(four);
      case 8:
        return static_cast<int>(eight);
      default:
        return -1;
    }
  };
  switch (*format) {
    case 'f':
      return static_cast<int>(DType::kFloat32);
    case 'd':
      return static_cast<int>(DType::kFloat64);
    case 'e':
      return static_cast<int>(DType::kFloat16);
    case '?':
      return static_cast<int>(DType::kBool);
    case 'c':
      return static_cast<int>(DType::kUInt8);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return pick(DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return pick(DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64);
    default:
      return -1;
  }
}

int dtypeOfDlpack(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(type.code);
  if (type.lanes != 1) return -1;
  switch (code) {
    case Code::Float:
      return type.bits == 32   ? static_cast<int>(DType::kFloat32)
             : type.bits == 64 ? static_cast<int>(DType::kFloat64)
             : type.bits == 16 ? static_cast<int>(DType::kFloat16)
                               : -1;
    case Code::Bfloat:
      return type.bits == 16 ? static_cast<int>(DType::kBFloat16) : -1;
    case Code::Complex:
      return type.bits == 64    ? static_cast<int>(DType::kComplex64)
             : type.bits == 128 ? static_cast<int>(DType::kComplex128)
                                : -1;
    case Code::Bool:
      return type.bits == 8 ? static_cast<int>(DType::kBool) : -1;
    case Code::Int:
    case Code::UInt: {
      const char* format = code == Code::Int ? "i" : "I";
      return dtypeOfFormat(format, type.bits / 8);
    }
    default:
      return type.bits == 8 ? static_cast<int>(DType::kOpaque8) : -1;
  }
}

ArrayMemory describeExported(const Py_buffer& view, nb::handle object) {
  const int dtype = dtypeOfFormat(view.format, view.itemsize);
  if (dtype < 0) {
    refuse("the elements of this " + typeName(object) + " have format \"" +
           (view.format == nullptr ? "" : view.format) +
           "\"; expected booleans, integers, floats or complex numbers in native byte order. "
           "Convert it with astype().");
  }
  return {reinterpret_cast<std::uintptr_t>(view.buf),
          static_cast<std::uint64_t>(view.len / view.itemsize), dtype};
}

// Anything that has no DLPack comes back as it is.
nb::object holdExport(const nb::object& owner) {
  nb::ndarray<> writable;
  if (nb::try_cast(owner, writable)) {
    return nb::cast(HeldExport{owner, nb::ndarray<nb::ro>(writable), false});
  }
  nb::ndarray<nb::ro> readable;
  if (!nb::try_cast(owner, readable)) return owner;
  return nb::cast(HeldExport{owner, std::move(readable), true});
}

bool isSequence(nb::handle object) {
  return PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0;
}

}  // namespace

nb::object holderOf(nb::object owner, int depth) {
  if (isSequence(owner)) {
    if (depth == 0) return owner;  // arrays are not nested deeper: it is refused where it is used
    const nb::object elements = nb::steal(PySequence_Tuple(owner.ptr()));
    if (!elements.is_valid()) throw nb::python_error();
    nb::list holders;
    for (nb::handle each : elements) holders.append(holderOf(nb::borrow(each), depth - 1));
    return nb::tuple(holders);
  }
  if (owner.is_none() || nb::isinstance<HeldExport>(owner)) return owner;
  if (PyObject_CheckBuffer(owner.ptr()) == 0) return holdExport(owner);
  PyObject* const view = PyMemoryView_FromObject(owner.ptr());
  if (view != nullptr) return nb::steal(view);
  PyErr_Clear();
  return owner;
}

ArrayMemory memoryOf(nb::object& object, bool isWritable, HeldBuffer& held) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (isWritable ? PyBUF_WRITABLE : 0);
  if (PyObject_CheckBuffer(object.ptr())) {
    if (held.hold(object.ptr(), flags)) return describeExported(held.view(), object);
    nb::python_error cause;
    refuse("this " + typeName(object) + " cannot be used: " + cause.what() +
           "; expected a contiguous (C order)" + (isWritable ? ", writable" : "") +
           " array. Pass numpy.ascontiguousarray(...) or a writable copy.");
  }
  object = holderOf(std::move(object), 0);
  HeldExport* exported = nullptr;
  if (!nb::try_cast(object, exported) || exported == nullptr) {
    refuse((isSequence(object) ? "a list or tuple" : "a " + typeName(object)) +
           " is no array; expected a NumPy array or anything with the buffer protocol or DLPack.");
  }
  // What torch negates or conjugates when it is read; DLPack does not say so.
  for (const char* lazily : {"neg", "conj"}) {
    const std::string name = lazily;
    const nb::object& owner = exported->owner;
    if (nb::hasattr(owner, ("is_" + name).c_str()) &&
        nb::cast<bool>(owner.attr(("is_" + name).c_str())())) {
      refuse("this " + typeName(object) + " is a lazy view (is_" + name +
             "), whose memory does not hold its values; expected an ordinary one. Pass its "
             "resolve_" +
             name + "().");
    }
  }
  const nb::ndarray<nb::ro>& array = exported->array;
  if (isWritable && exported->isReadOnly) {
    refuse("this " + typeName(object) +
           " is read-only; expected a writable array. Pass a writable copy.");
  }
  if (array.device_type() != nb::device::cpu::value) {
    refuse("this " + typeName(object) +
           " is not in CPU memory; expected a CPU array. Copy it to the CPU first.");
  }
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != expected && array.size() != 0) {
      refuse("this " + typeName(object) +
             " is not contiguous; expected C order without gaps. Pass a contiguous copy.");
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  const int dtype = dtypeOfDlpack(array.dtype());
  if (dtype < 0) {
    refuse("the element type of this " + typeName(object) +
           " is not supported; expected booleans, integers, floats or complex numbers.");
  }
  return {reinterpret_cast<std::uintptr_t>(array.data()), array.size(), dtype};
}

void registerBuffer(nb::module_& module) {
  nb::class_<HeldExport>(module, "HeldExport", "What hold() makes of an array with DLPack.");
  module.def(
      "hold",
      [](nb::object arrays) {
        return nb::borrow<nb::any>(holderOf(std::move(arrays), kListsOfArrays));
      },
      nb::arg("arrays").none(),
      "What keeps the memory of arrays where it is, for use in their place: of one with the "
      "buffer\nprotocol a memoryview, which makes resizing it a BufferError; of one with DLPack, "
      "what it has\nexported; of those in tuples and lists, a tuple of such; anything else as it "
      "is.");
  module.def(
      "buffer",
      [](nb::object object, bool isWritable) {
        HeldBuffer held;
        const ArrayMemory memory = memoryOf(object, isWritable, held);
        return nb::typed<nb::tuple, int, int, int>(
            nb::make_tuple(memory.address, memory.count, memory.dtype));
      },
      nb::arg("array").none(), nb::arg("writable") = false,
      "(address, number of elements, dtype code) of a contiguous array in CPU memory.\n\n"
      "The address is valid while the array lives and is not resized: see hold(). Raises "
      "ValueError\nfor anything else.");
}

}  // namespace smd::bindings
