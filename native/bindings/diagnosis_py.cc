// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What Python may ask about a group and its network, rather than of it.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "bindings/communicator_methods.h"
#include "bindings/diagnosis_py.h"
#include "engine/diagnostics/flight_record.h"
#include "engine/group/registry.h"

namespace smd::bindings {
namespace {

using RankInfo = nb::typed<nb::dict, nb::str, nb::object>;

nb::typed<nb::list, RankInfo> topology(const PyCommunicator& self) {
  const engine::Communicator& communicator = self.engine();
  nb::list ranks;
  const auto& identities = communicator.membership().identities;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    nb::dict entry;
    const bool isSelf = peer == communicator.rank();
    const bool isLocal = communicator.sharesMemoryWith(peer);
    entry["host"] = identities[static_cast<std::size_t>(peer)].host;
    entry["pid"] = identities[static_cast<std::size_t>(peer)].pid;
    entry["is_local"] = isLocal;
    entry["transport"] = isSelf ? "self" : isLocal ? "shm" : "tcp";
    ranks.append(entry);
  }
  return nb::typed<nb::list, RankInfo>(ranks);
}

std::string explain(const PyCommunicator& self, const std::string& collective,
                    std::uint64_t payloadBytes) {
  for (int kind = 0; kind < static_cast<int>(OpKind::kSend); ++kind) {
    if (smd::name(static_cast<OpKind>(kind)) != collective) continue;
    const engine::Choice choice = self.engine().choose(static_cast<OpKind>(kind), payloadBytes);
    return std::string(engine::name(choice.algorithm)) + ": " + choice.reason;
  }
  self.errors().raise(
      Error(ErrorKind::kConfiguration,
            "\"" + collective + "\" is no collective; expected a name such as all_reduce"));
}

bool isInUse(std::uintptr_t address, std::size_t bytes) {
  const auto communicators = engine::liveCommunicators();
  return std::any_of(communicators.begin(), communicators.end(), [&](const auto& communicator) {
    return communicator->isInUse(input(address), bytes);
  });
}

}  // namespace

void addDiagnosis(CommunicatorClass& communicator) {
  communicator
      .def_prop_ro(
          "interfaces", [](const PyCommunicator& self) { return self.engine().interfaces(); },
          "Network interfaces of this rank through which it reaches other hosts, the main one "
          "first:\n'eth0 (10.1.0.2), eth1 (10.2.0.2)'; '' if there are no other hosts.")
      .def_prop_ro(
          "link",
          [](const PyCommunicator& self) {
            const auto& link = self.engine().link();
            return std::pair(link.latencySeconds, link.bytesPerSecond);
          },
          "Between hosts: seconds that a small message takes, and bytes per second. Measured when "
          "the\nfirst group over several hosts is made, of the slowest, rounded to powers of two "
          "(in\nmicroseconds); the same on all ranks.")
      .def("topology", &topology, "Per rank: host, pid, is_local, transport.")
      .def("explain", &explain, nb::arg("collective"), nb::arg("payload_bytes"),
           "Which algorithm would be chosen, and why.");
}

void registerDiagnosis(nb::module_& module) {
  module.def("is_in_use", &isInUse, nb::arg("address"), nb::arg("nbytes"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Whether an operation of this process that is not complete reads or writes there.\n\n"
             "Sends and receives in which another thread blocks are not counted.");
  module.def("set_uneven_batches_advice", &engine::setUnevenBatchesAdvice, nb::arg("advice"),
             "What reports say to do about uneven batches, in words of the framework in use: the "
             "end of\na sentence. The last call counts.");
}

}  // namespace smd::bindings
