// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared buffers as Python sees them: through DLPack (torch) and the buffer protocol (NumPy).
// The DLPack structures are written here, rather than nanobind's ndarray being used, for the sake
// of their deleter: a framework drops tensors on any thread, also while the interpreter goes away,
// and ours needs no GIL.
#include "bindings/shared_buffer_py.h"

#include <cstdint>
#include <string>

#include "bindings/communicator_methods.h"

namespace smd::bindings {
namespace {

// https://dmlc.github.io/dlpack/latest/c_api.html, the unversioned form, which every consumer
// takes.
struct DlTensor {
  void* data;
  std::int32_t deviceType;
  std::int32_t deviceId;
  std::int32_t numDims;
  std::uint8_t typeCode;
  std::uint8_t typeBits;
  std::uint16_t typeLanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byteOffset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};
constexpr std::int32_t kDlCpu = 1;
constexpr std::uint8_t kDlUInt = 1;
constexpr const char* kCapsuleName = "dltensor";

struct Export {
  DlManagedTensor managed;
  std::int64_t shape;
  std::int64_t stride;
  std::shared_ptr<transport::shm::SharedBuffer> buffer;
};

void deleteExport(DlManagedTensor* managed) { delete static_cast<Export*>(managed->context); }

// Who consumes a capsule renames it and calls the deleter itself.
void dropUnconsumed(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsuleName) == 0) return;
  auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  managed->deleter(managed);
}

int getBuffer(PyObject* self, Py_buffer* view, int flags) {
  const auto& buffer = nb::inst_ptr<PySharedBuffer>(self)->buffer();
  return PyBuffer_FillInfo(view, self, buffer.data(), static_cast<Py_ssize_t>(buffer.size()), 0,
                           flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&getBuffer)}, {0, nullptr}};

class SharedBufferOrNone : public nb::object {
  NB_OBJECT_DEFAULT(SharedBufferOrNone, nb::object, "SharedBuffer | None", isAnyObject)
};

SharedBufferOrNone allocateShared(const PyCommunicator& self, std::int64_t bytes, bool isZeroed) {
  if (bytes < 1) {
    throw nb::value_error(("allocate_shared was asked for " + std::to_string(bytes) +
                           " bytes; expected at least 1. Skip empty buffers.")
                              .c_str());
  }
  auto buffer = self.guarded([&] {
    nb::gil_scoped_release release;
    return self.engine().allocateShared(
        static_cast<std::size_t>(bytes),
        isZeroed ? transport::shm::Contents::kZeros : transport::shm::Contents::kAny);
  });
  if (buffer == nullptr) return nb::borrow<SharedBufferOrNone>(nb::none());
  return nb::borrow<SharedBufferOrNone>(nb::cast(PySharedBuffer(std::move(buffer))));
}

}  // namespace

nb::object PySharedBuffer::toDlpack() const {
  auto exported = std::make_unique<Export>();
  exported->buffer = buffer_;
  exported->shape = static_cast<std::int64_t>(buffer_->size());
  exported->stride = 1;
  exported->managed = {
      {buffer_->data(), kDlCpu, 0, 1, kDlUInt, 8, 1, &exported->shape, &exported->stride, 0},
      exported.get(),
      &deleteExport};
  PyObject* capsule = PyCapsule_New(&exported->managed, kCapsuleName, &dropUnconsumed);
  if (capsule == nullptr) throw nb::python_error();
  exported.release();
  return nb::steal(capsule);
}

void addSharedMemory(CommunicatorClass& communicator) {
  communicator.def(
      "allocate_shared", &allocateShared, nb::arg("nbytes"), nb::arg("zeroed") = true,
      "Memory that all ranks can reach, or None where there is none to be had:\n"
      "one rank, several hosts, TCP, no room, a group that is closed or has failed.\n\n"
      "Not a collective. all_reduce_ptr and reduce_ptr work in place, and the others read "
      "their\n"
      "inputs where they lie, on addresses inside such buffers, if every rank passes one.\n"
      "Unless zeroed, it holds what this rank's earlier buffers have left there.");
}

void registerSharedBuffer(nb::module_& module) {
  nb::class_<PySharedBuffer>(
      module, "SharedBuffer", nb::type_slots(slots),
      "Bytes in memory that all ranks of a host can reach: uint8, on a page boundary.\n\n"
      "For torch.from_dlpack() and numpy.frombuffer(); the memory lives as long as anything made\n"
      "from it, also after the communicator is closed. A forked child has a copy of its own.")
      .def_prop_ro("nbytes", [](const PySharedBuffer& self) { return self.buffer().size(); })
      .def(
          "__dlpack__",
          [](const PySharedBuffer& self, nb::handle, nb::handle, nb::handle, nb::handle copy) {
            if (copy.ptr() == Py_True) {
              throw nb::buffer_error(
                  "a shared buffer is exported without a copy; expected copy=None or False. Copy "
                  "what from_dlpack() returns.");
            }
            return self.toDlpack();
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack_device__", [](const PySharedBuffer&) {
        return nb::typed<nb::tuple, int, int>(nb::make_tuple(kDlCpu, 0));
      });
}

}  // namespace smd::bindings
