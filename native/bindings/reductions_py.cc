// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives that combine elements.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/call_py.h"
#include "bindings/communicator_methods.h"

namespace smd::bindings {

void addReductions(CommunicatorClass& communicator) {
  communicator
      .def(
          "all_reduce",
          [](const PyCommunicator& self, nb::object array, int op, double factor, bool asyncOp,
             double timeoutSeconds) {
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, true, held);
            return self.collective(
                inPlace(reduction(OpKind::kAllReduce, memory.dtype, op, factor), memory),
                onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("op"), nb::arg("factor") = 1.0, SMD_ARRAY_ARGS, kOfArray)
      .def(
          "all_reduce_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype, int op,
             double factor, SMD_CALL_PARAMETERS, std::uint64_t layout) {
            Request request =
                inPlace(reduction(OpKind::kAllReduce, dtype, op, factor), {ptr, count, dtype});
            request.layout = layout;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS,
          "``layout``: 0, or what storage_order() gives for an array whose elements lie in another "
          "order\nthan their indices; ranks that differ in it get MismatchError. Also in "
          "reduce_ptr,\nbroadcast_ptr, and in coalesced_ptr, where it is a digest of all buffers'.")
      .def(
          "reduce",
          [](const PyCommunicator& self, nb::object array, int op, int root, double factor,
             bool asyncOp, double timeoutSeconds) {
            requireRank(self.engine().size(), root);
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, self.engine().rank() == root, held);
            Request request = inPlace(reduction(OpKind::kReduce, memory.dtype, op, factor), memory);
            request.root = root;
            return self.collective(std::move(request),
                                   onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("op"), nb::arg("root"), nb::arg("factor") = 1.0,
          SMD_ARRAY_ARGS, kOfArray)
      .def(
          "reduce_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype, int op,
             int root, double factor, SMD_CALL_PARAMETERS, std::uint64_t layout) {
            requireRank(self.engine().size(), root);
            Request request =
                inPlace(reduction(OpKind::kReduce, dtype, op, factor), {ptr, count, dtype});
            request.root = root;
            request.layout = layout;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"),
          nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS)
      .def(
          "reduce_scatter_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, std::uintptr_t outPtr,
             const Counts& counts, int dtype, int op, double factor, SMD_CALL_PARAMETERS) {
            requireLists(self.engine().size(), "reduce_scatter", inPtrs.size(), counts.size());
            Request request = reduction(OpKind::kReduceScatter, dtype, op, factor);
            request.inputs = inputs(inPtrs);
            request.inputCounts = counts;
            request.output = output(outPtr);
            request.count = counts[static_cast<std::size_t>(self.engine().rank())];
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("out_ptr"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("op"), nb::arg("factor") = 1.0, SMD_CALL_ARGS)
      .def(
          "reduce_scatter_from_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, std::uintptr_t outPtr,
             std::uint64_t count, int dtype, int op, double factor, SMD_CALL_PARAMETERS) {
            Request request = reduction(OpKind::kReduceScatter, dtype, op, factor);
            const int size = self.engine().size();
            for (std::byte* part : consecutive(inPtr, count * elementSize(request.dtype), size)) {
              request.inputs.push_back(part);
            }
            request.inputCounts.assign(static_cast<std::size_t>(size), count);
            request.output = output(outPtr);
            request.count = count;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("factor") = 1.0, SMD_CALL_ARGS)
      .def(
          "coalesced_ptr",
          [](const PyCommunicator& self, const std::string& collective, const Addresses& inPtrs,
             const Addresses& outPtrs, const Counts& counts, int dtype, int op, double factor,
             SMD_CALL_PARAMETERS, std::uint64_t layout, SMD_LABEL_PARAMETERS) {
            Request request = reduction(toCoalesced(collective), dtype, op, factor);
            request.pieces = pieces(inPtrs, outPtrs, counts);
            request.layout = layout;
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("collective"), nb::arg("in_ptrs"), nb::arg("out_ptrs"), nb::arg("counts"),
          nb::arg("dtype"), nb::arg("op") = 0, nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS,
          SMD_LABEL_ARGS,
          "all_reduce, all_gather or reduce_scatter of many small buffers, as one operation on a\n"
          "packed copy; bit for bit what one call for each would give. counts: elements of each\n"
          "buffer, or of its share for one rank on the side that has one for every rank. For\n"
          "all_reduce out_ptrs may be in_ptrs.");
}

}  // namespace smd::bindings
