// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A group as Python sees it, `_native.Communicator`. Its methods are in one file per topic
// (communicator_methods.h); here is what all of them need.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <utility>

#include "bindings/duration.h"
#include "bindings/options_py.h"
#include "bindings/python_errors.h"
#include "bindings/request_py.h"
#include "bindings/work_py.h"
#include "engine/group/communicator.h"
#include "plugin_api/group.h"

namespace smd::bindings {

// What Python sees of an operation, with the type the stub shows.
class WorkOrNone : public nb::object {
  NB_OBJECT_DEFAULT(WorkOrNone, nb::object, "Work | None", isAnyObject)
};

// What every call may be told besides its buffers.
struct CallOptions {
  bool isAsync;
  double timeoutSeconds;
  nb::object owner;  // of the buffers; held until an asynchronous operation is complete
};

// Nothing has begun: what `Held` of smdistributed.collectives holds for it is the caller's again.
void letGoOf(const nb::object& owner);

class PyCommunicator {
 public:
  // Runs `function` and turns its errors into the group's classes. Defined first: what it returns
  // is deduced.
  template <class Function>
  auto guarded(Function&& function) const {
    try {
      return function();
    } catch (const Error& error) {
      errors_->raise(error);
    } catch (const engine::Interrupted&) {
      throw nb::python_error();  // the signal handler's exception is set
    }
  }

  PyCommunicator(int rank, int worldSize, nb::object exchange, const PyEngineOptions& options,
                 std::string name, nb::object errors);
  ~PyCommunicator();

  engine::Communicator& engine() const { return *communicator_; }
  const ErrorClasses& errors() const { return *errors_; }

  std::uintptr_t pluginHandle();
  void abort(const std::string& reason) const;
  void close() const;

  // Runs a collective; None once complete, or its Work.
  WorkOrNone collective(Request&& request, const CallOptions& call) const {
    return nb::borrow<WorkOrNone>(run(
        call,
        [&](engine::Mode mode) {
          return communicator_->collective(std::move(request), mode,
                                           toDuration(call.timeoutSeconds));
        },
        [](const engine::Work&) { return nb::none(); }));
  }

  // Runs what `start(mode)` starts. Returns its Work, or, once it is complete, what `result(work)`
  // makes of it.
  template <class Start, class Result>
  nb::object run(const CallOptions& call, Start&& start, Result&& result) const {
    const engine::Mode mode = call.isAsync ? engine::Mode::kAsync : engine::Mode::kBlocking;
    dropWhatHasEnded();
    std::unique_ptr<PyWork> handle;
    if (call.isAsync) {
      handle = std::make_unique<PyWork>(communicator_, errors_, call.owner);
    }
    std::shared_ptr<engine::Work> work;
    try {
      work = guarded([&] {
        nb::gil_scoped_release release;
        return start(mode);
      });
    } catch (...) {
      if (handle != nullptr) {
        handle->letGo();
        letGoOf(call.owner);
      }
      throw;
    }
    if (call.isAsync) {
      handle->begin(std::move(work));
      return nb::cast(handle.release(), nb::rv_policy::take_ownership);
    }
    dropWhatHasEnded();
    if (work->error()) errors_->raise(*work->error());
    return result(*work);
  }

 private:
  std::shared_ptr<ErrorClasses> errors_;
  std::shared_ptr<engine::Communicator> communicator_;
  plugin_api::Handle pluginHandle_;
};

void registerCommunicator(nanobind::module_& module);

// Closes every communicator of the process and ends the progress thread, so that no thread of ours
// wants the GIL while the interpreter goes away.
void prepareExit();

}  // namespace smd::bindings
