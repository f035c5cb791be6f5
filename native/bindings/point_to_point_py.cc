// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Sends and receives whose size both sides know.
#include "bindings/call_py.h"
#include "bindings/communicator_methods.h"

namespace smd::bindings {
namespace {

class WorkOrRank : public nb::object {
  NB_OBJECT_DEFAULT(WorkOrRank, nb::object, "int | Work", isAnyObject)
};

nb::object sendOrReceive(const PyCommunicator& self, bool isSend, std::uintptr_t address,
                         std::uint64_t count, int dtype, int peer, std::uint64_t tag,
                         const CallOptions& call) {
  return self.run(
      call,
      [&](engine::Mode mode) {
        const nanoseconds timeout = toDuration(call.timeoutSeconds);
        return isSend ? self.engine().send(input(address), count, toDType(dtype), peer, tag, mode,
                                           timeout)
                      : self.engine().receive(output(address), count, toDType(dtype), peer, tag,
                                              mode, timeout);
      },
      [isSend](const engine::Work& work) -> nb::object {
        if (isSend) return nb::none();
        return nb::int_(work.source());
      });
}

}  // namespace

void addPointToPoint(CommunicatorClass& communicator) {
  communicator
      .def(
          "send_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int peer, std::uint64_t tag, SMD_CALL_PARAMETERS) {
            return nb::borrow<WorkOrNone>(
                sendOrReceive(self, true, ptr, count, dtype, peer, tag, SMD_CALL));
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag") = 0,
          SMD_CALL_ARGS)
      .def(
          "recv_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int peer, std::uint64_t tag, SMD_CALL_PARAMETERS) {
            return nb::borrow<WorkOrRank>(
                sendOrReceive(self, false, ptr, count, dtype, peer, tag, SMD_CALL));
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag") = 0,
          SMD_CALL_ARGS,
          "peer -1: whoever sends first. The blocking form returns the sender's rank.");
}

}  // namespace smd::bindings
