// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives that move elements, and the barrier, which moves none.
#include <nanobind/stl/vector.h>

#include "bindings/call_py.h"
#include "bindings/communicator_methods.h"

namespace smd::bindings {

void addMovements(CommunicatorClass& communicator) {
  communicator
      .def(
          "broadcast",
          [](const PyCommunicator& self, nb::object array, int root, bool asyncOp,
             double timeoutSeconds) {
            requireRank(self.engine().size(), root);
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, self.engine().rank() != root, held);
            Request request = inPlace(movement(OpKind::kBroadcast, memory.dtype), memory);
            request.root = root;
            return self.collective(std::move(request),
                                   onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("root"), SMD_ARRAY_ARGS, kOfArray)
      .def(
          "broadcast_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int root, SMD_CALL_PARAMETERS, std::uint64_t layout, SMD_LABEL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = inPlace(movement(OpKind::kBroadcast, dtype), {ptr, count, dtype});
            request.root = root;
            request.layout = layout;
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("root"), SMD_LAYOUT_ARGS,
          SMD_LABEL_ARGS)
      .def(
          "all_gather_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, const Addresses& outPtrs,
             const Counts& counts, int dtype, SMD_CALL_PARAMETERS, SMD_LABEL_PARAMETERS) {
            requireLists(self.engine().size(), "all_gather", outPtrs.size(), counts.size());
            Request request = movement(OpKind::kAllGather, dtype);
            request.input = input(inPtr);
            request.outputs = outputs(outPtrs);
            request.outputCounts = counts;
            request.count = counts[static_cast<std::size_t>(self.engine().rank())];
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          SMD_CALL_ARGS, SMD_LABEL_ARGS)
      .def(
          "all_gather_into_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, std::uintptr_t outPtr,
             std::uint64_t count, int dtype, SMD_CALL_PARAMETERS) {
            Request request = movement(OpKind::kAllGather, dtype);
            const int size = self.engine().size();
            request.input = input(inPtr);
            request.outputs = consecutive(outPtr, count * elementSize(request.dtype), size);
            request.outputCounts.assign(static_cast<std::size_t>(size), count);
            request.count = count;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("count"), nb::arg("dtype"), SMD_CALL_ARGS)
      .def(
          "all_to_all_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, const Counts& inCounts,
             const Addresses& outPtrs, const Counts& outCounts, int dtype, SMD_CALL_PARAMETERS) {
            requireLists(self.engine().size(), "all_to_all input", inPtrs.size(), inCounts.size());
            requireLists(self.engine().size(), "all_to_all output", outPtrs.size(),
                         outCounts.size());
            Request request = movement(OpKind::kAllToAll, dtype);
            request.inputs = inputs(inPtrs);
            request.inputCounts = inCounts;
            request.outputs = outputs(outPtrs);
            request.outputCounts = outCounts;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("in_counts"), nb::arg("out_ptrs"), nb::arg("out_counts"),
          nb::arg("dtype"), SMD_CALL_ARGS)
      .def(
          "gather_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, const Addresses& outPtrs,
             const Counts& counts, int dtype, int root, std::int64_t inCount, SMD_CALL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = movement(OpKind::kGather, dtype);
            request.root = root;
            request.input = input(inPtr);
            if (self.engine().rank() == root) {
              requireLists(self.engine().size(), "gather", outPtrs.size(), counts.size());
              request.outputs = outputs(outPtrs);
              request.outputCounts = counts;
            }
            request.count = inCount >= 0
                                ? static_cast<std::uint64_t>(inCount)
                                : counts.at(static_cast<std::size_t>(self.engine().rank()));
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("in_count") = -1, SMD_CALL_ARGS,
          "in_count: elements of this rank's input; -1: counts[rank] (then every rank gives "
          "counts).")
      .def(
          "scatter_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, std::uintptr_t outPtr,
             const Counts& counts, int dtype, int root, std::int64_t outCount,
             SMD_CALL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = movement(OpKind::kScatter, dtype);
            request.root = root;
            request.output = output(outPtr);
            if (self.engine().rank() == root) {
              requireLists(self.engine().size(), "scatter", inPtrs.size(), counts.size());
              request.inputs = inputs(inPtrs);
              request.inputCounts = counts;
            }
            request.count = outCount >= 0
                                ? static_cast<std::uint64_t>(outCount)
                                : counts.at(static_cast<std::size_t>(self.engine().rank()));
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("out_ptr"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("out_count") = -1, SMD_CALL_ARGS,
          "out_count: elements of this rank's output; -1: counts[rank] (then every rank gives "
          "counts).")
      .def(
          "barrier",
          [](const PyCommunicator& self, bool asyncOp, double timeoutSeconds) {
            return self.collective(Request{}, CallOptions{asyncOp, timeoutSeconds, nb::none()});
          },
          nb::arg("async_op") = false, nb::arg("timeout_s") = 0.0);
}

}  // namespace smd::bindings
