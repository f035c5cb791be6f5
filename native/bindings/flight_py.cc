// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The flight record of this process as plain dicts, and as the text that SIGUSR1 prints.
#include "bindings/flight_py.h"

#include "bindings/python_errors.h"
#include "engine/group/registry.h"

namespace smd::bindings {
namespace {

namespace nb = nanobind;

using RecordDict = nb::typed<nb::dict, nb::str, nb::object>;

double secondsSince(std::int64_t nowNs, std::int64_t ns) {
  return static_cast<double>(nowNs - ns) / 1e9;
}

nb::dict toDict(const Signature& signature) {
  nb::dict entry;
  entry["sequence"] = signature.sequence;
  entry["kind"] = toStr(name(signature.kind));
  entry["dtype"] = toStr(name(signature.dtype));
  entry["count"] = signature.count;
  entry["op"] = toStr(name(signature.op));
  entry["root"] = signature.root;
  entry["text"] = toStr(describe(signature));
  return entry;
}

const char* stateName(FlightState state) {
  if (state == FlightState::kDone) return "done";
  return state == FlightState::kFailed ? "failed" : "under way";
}

nb::dict toDict(const FlightEntry& entry, std::int64_t nowNs) {
  nb::dict result = toDict(entry.signature);
  result["state"] = stateName(entry.state);
  result["age_s"] = secondsSince(nowNs, entry.queuedNs);
  result["queued_s"] = secondsSince(entry.startedNs, entry.queuedNs);
  if (entry.finishedNs == 0) {
    result["duration_s"] = nb::none();
  } else {
    result["duration_s"] = secondsSince(entry.finishedNs, entry.startedNs);
  }
  result["waits_for"] = entry.waitsFor;
  result["num_missing"] = entry.numMissing;
  return result;
}

nb::dict toDict(const engine::GroupRecord& record) {
  nb::dict result;
  result["group"] = toStr(record.group);
  result["rank"] = record.rank;
  result["world_size"] = record.size;
  result["state"] = toStr(record.state);
  result["num_called"] = record.position.numCalled;
  nb::list collectives, messages;
  for (const FlightEntry& entry : record.position.collectives) {
    collectives.append(toDict(entry, record.position.nowNs));
  }
  for (const Signature& signature : record.queued) {
    nb::dict entry = toDict(signature);
    entry["state"] = "queued";
    collectives.append(entry);
  }
  for (const FlightEntry& entry : record.position.messages) {
    messages.append(toDict(entry, record.position.nowNs));
  }
  result["collectives"] = collectives;
  result["messages"] = messages;
  return result;
}

}  // namespace

void registerFlight(nb::module_& module) {
  module.def(
      "flight_record",
      [] {
        std::vector<engine::GroupRecord> records;
        {
          nb::gil_scoped_release release;
          records = engine::flightRecords();
        }
        nb::list groups;
        for (const engine::GroupRecord& record : records) groups.append(toDict(record));
        return nb::typed<nb::list, RecordDict>(groups);
      },
      "The last operations of every group of this process: see collectives.flight_record().");
  module.def(
      "flight_record_text",
      [] {
        std::string text;
        {
          nb::gil_scoped_release release;
          text = engine::flightRecordText();
        }
        return toStr(text);
      },
      "The same as text, as SIGUSR1 prints it.");
}

}  // namespace smd::bindings
