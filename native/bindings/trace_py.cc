// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The trace of this process's operations, handed to Python as plain tuples: the profiler of a front
// end turns them into a file.
#include "bindings/trace_py.h"

#include "bindings/python_errors.h"
#include "engine/diagnostics/trace.h"

namespace smd::bindings {
namespace {

namespace nb = nanobind;

// Group, sequence, kind, dtype, reduce op, bytes, algorithm, queued, started, arrived, finished,
// driver, error.
using EventTuple = nb::typed<nb::tuple, nb::str, int, nb::str, nb::str, nb::str, int, nb::str, int,
                             int, int, int, nb::str, nb::str>;

nb::tuple toTuple(const engine::trace::Event& event) {
  const Signature& signature = event.signature;
  return nb::make_tuple(toStr(event.group), signature.sequence, toStr(name(signature.kind)),
                        toStr(name(signature.dtype)), toStr(name(signature.op)), event.bytes,
                        toStr(event.algorithm), event.queuedNs, event.startedNs, event.arrivedNs,
                        event.finishedNs, event.isDrivenByProgress ? "progress" : "caller",
                        toStr(event.error));
}

}  // namespace

void registerTrace(nb::module_& module) {
  module.def(
      "start_trace", [](std::size_t capacity) { engine::trace::start(capacity); },
      nb::arg("capacity") = 65536,
      "Records what the operations of this process do, up to ``capacity`` of them.\n\n"
      "The first ones are kept and later ones counted. Discards what was recorded before.");
  module.def(
      "stop_trace",
      [] {
        const engine::trace::Recording recording = engine::trace::stop();
        nb::list events;
        for (const engine::trace::Event& event : recording.events) events.append(toTuple(event));
        return nb::typed<nb::tuple, nb::typed<nb::list, EventTuple>, int>(
            nb::make_tuple(events, recording.numDropped));
      },
      "(events, number dropped) since start_trace(); events in the order of completion.\n\n"
      "An event is (group, sequence, kind, dtype, reduce_op, nbytes, algorithm, queued_ns,\n"
      "started_ns, arrived_ns, finished_ns, driver, error). ``sequence`` counts the collectives "
      "of\n"
      "a group from 1 and is 0 for send and recv, whose ``algorithm`` is \"message\". Times are\n"
      "those of time.monotonic_ns(), 0 if something did not happen or is not known: the call, the\n"
      "start as the first of its queue, the moment all ranks had arrived, the end. ``driver`` is\n"
      "the thread it ended on: \"caller\" or \"progress\". ``error``: \"\" if it went well.");
}

}  // namespace smd::bindings
