// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/communicator_py.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <vector>

#include "bindings/communicator_methods.h"
#include "engine/group/drive.h"
#include "engine/group/plugin_group.h"
#include "engine/group/progress.h"
#include "engine/group/registry.h"

namespace smd::bindings {
namespace {

// Python runs signal handlers on its main thread only. Elsewhere there is nothing to ask for.
bool wasInterrupted() {
  if (gettid() != getpid()) return false;
  nb::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0 || Py_MakePendingCalls() != 0;  // see addDoneCallback()
}

}  // namespace

void letGoOf(const nb::object& owner) {
  if (!nb::hasattr(owner, "_let_go")) return;
  try {
    owner.attr("_let_go")();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("smdistributed Held");
  }
}

PyCommunicator::PyCommunicator(int rank, int worldSize, nb::object exchange,
                               const PyEngineOptions& options, std::string name, nb::object errors)
    : errors_(std::make_shared<ErrorClasses>(errors)) {
  guarded([&] {
    engine::EngineOptions chosen = toOptions(options);
    const auto exchangeBytes = [&exchange](const std::string& key, const std::string& value) {
      nb::gil_scoped_acquire acquire;
      const nb::object values =
          exchange(nb::str(key.c_str()), nb::bytes(value.data(), value.size()));
      std::vector<std::string> all;
      for (nb::handle item : values) {
        const auto bytes = nb::cast<nb::bytes>(item);
        all.emplace_back(bytes.c_str(), bytes.size());
      }
      return all;
    };
    nb::gil_scoped_release release;
    communicator_ = engine::Communicator::create(rank, worldSize, exchangeBytes, std::move(chosen),
                                                 std::move(name));
  });
}

PyCommunicator::~PyCommunicator() {
  nb::gil_scoped_release release;
  pluginHandle_.group.reset();
  communicator_.reset();
}

std::uintptr_t PyCommunicator::pluginHandle() {
  if (pluginHandle_.group == nullptr) pluginHandle_.group = engine::makePluginGroup(communicator_);
  return reinterpret_cast<std::uintptr_t>(&pluginHandle_);
}

void PyCommunicator::abort(const std::string& reason) const {
  {
    nb::gil_scoped_release release;
    communicator_->abort(reason);
  }
  dropWhatHasEnded();
}

void PyCommunicator::close() const {
  if (communicator_->isInterruptedHere()) {
    errors_->raise(
        Error(ErrorKind::kConfiguration,
              "group '" + communicator_->name() +
                  "' is closed in a signal handler that interrupts one of its calls; expected that "
                  "elsewhere, since that call goes on only after the handler. Raise an "
                  "exception in the handler to end the call, and close the group after it; or call "
                  "abort() here."));
  }
  if (engine::Work::isCallingBack()) {
    errors_->raise(
        Error(ErrorKind::kConfiguration,
              "group '" + communicator_->name() +
                  "' is closed in a done-callback of an operation; expected that elsewhere, since "
                  "closing waits for the thread that runs it. Call abort() here, and close() on "
                  "a thread of your own."));
  }
  {
    nb::gil_scoped_release release;
    communicator_->close();
  }
  dropWhatHasEnded();
}

void prepareExit() {
  nb::gil_scoped_release release;
  std::vector<std::shared_ptr<engine::Communicator>> open = engine::liveCommunicators();
  for (auto& communicator : open) communicator->close();
  open.clear();
  engine::ProgressThread::process().shutdown();
}

void registerCommunicator(nb::module_& module) {
  engine::setInterruptCheck(&wasInterrupted);
  CommunicatorClass communicator(
      module, "Communicator",
      "A group of ranks, by raw pointers into CPU memory. Front ends build on this; users on\n"
      "smdistributed.collectives.Communicator.\n\n"
      "Pointers are addresses of contiguous memory, counts are elements, dtype and op are the "
      "codes\n"
      "of this module. Every call releases the GIL. With async_op=True it returns a Work and\n"
      "keep_alive is held until the operation is complete; otherwise it returns None when "
      "complete.\n"
      "timeout_s <= 0 means the communicator's own. Errors: the classes given as ``errors``.");
  communicator
      .def(nb::init<int, int, nb::object, const PyEngineOptions&, std::string, nb::object>(),
           nb::arg("rank"), nb::arg("world_size"), nb::arg("exchange"), nb::arg("options"),
           nb::kw_only(), nb::arg("name") = "default", nb::arg("errors") = nb::none())
      .def_prop_ro("rank", [](const PyCommunicator& self) { return self.engine().rank(); })
      .def_prop_ro("world_size", [](const PyCommunicator& self) { return self.engine().size(); })
      .def_prop_ro("name", [](const PyCommunicator& self) { return self.engine().name(); })
      .def("plugin_handle", &PyCommunicator::pluginHandle,
           "For other native libraries of this package: an address that is valid while this object "
           "is.")
      .def("abort", &PyCommunicator::abort, nb::arg("reason"),
           "Makes every rank's pending and later operations fail with ``reason``.")
      .def("close", &PyCommunicator::close, "Says goodbye and releases everything. Idempotent.");
  addDiagnosis(communicator);
  addSharedMemory(communicator);
  addMessages(communicator);
  addReductions(communicator);
  addMovements(communicator);
  addPointToPoint(communicator);
}

}  // namespace smd::bindings
