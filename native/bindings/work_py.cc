// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/work_py.h"

#include <mutex>
#include <vector>

#include "bindings/duration.h"

namespace smd::bindings {
namespace {

using Drive = engine::Communicator::Drive;

// Objects whose operation ended on a thread that does not hold the GIL; dropped by the next one
// that does. Taking the GIL for it would make every asynchronous operation wait for the
// interpreter.
struct Graveyard {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
Graveyard& graveyard() {
  static auto* instance = new Graveyard;
  return *instance;
}

void bury(PyObject* object) {
  std::lock_guard lock(graveyard().mutex);
  graveyard().objects.push_back(object);
}

void clearGraveyard() {
  std::vector<PyObject*> objects;
  {
    std::lock_guard lock(graveyard().mutex);
    objects.swap(graveyard().objects);
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

}  // namespace

PyWork::PyWork(std::shared_ptr<engine::Work> work,
               const std::shared_ptr<engine::Communicator>& communicator,
               std::shared_ptr<ErrorClasses> errors, nb::object owner)
    : work_(std::move(work)), communicator_(communicator), errors_(std::move(errors)) {
  clearGraveyard();
  if (!owner.is_none() && !work_->isCompleted()) {
    work_->onCompletion([object = owner.release().ptr()] { bury(object); });
  }
}

void PyWork::wait(nb::handle timeoutSeconds) const {
  if (!work_->isCompleted()) {
    TimePoint end = TimePoint::max();
    if (timeoutSeconds.is_valid() && !timeoutSeconds.is_none()) {
      const double limit = nb::cast<double>(timeoutSeconds);
      if (limit > 0) end = endAfter(limit);
    }
    Drive result = Drive::kDone;
    {
      nb::gil_scoped_release release;
      if (const auto communicator = communicator_.lock()) {
        result = communicator->wait(*work_, end);
      }  // else it has been closed, which completes its operations
    }
    if (result == Drive::kInterrupted) throw nb::python_error();
    if (result == Drive::kNotYet) {
      errors_->raise(
          Error(ErrorKind::kTimeout,
                describe(work_->signature()) +
                    " is still under way when the time given to wait() is over; expected "
                    "it to be complete. Wait longer; the operation goes on."));
    }
  }
  clearGraveyard();
  if (work_->error()) errors_->raise(*work_->error());
}

ErrorOrNone PyWork::exception() const {
  if (!work_->isCompleted() || !work_->error()) return nb::borrow<ErrorOrNone>(nb::none());
  return nb::borrow<ErrorOrNone>(errors_->toPython(*work_->error()));
}

void PyWork::addDoneCallback(nb::object self, nb::object function) {
  const std::shared_ptr<engine::Work> work = nb::cast<PyWork&>(self).work_;
  work->onCompletion([pySelf = self.release().ptr(), pyFunction = function.release().ptr()] {
    nb::gil_scoped_acquire acquire;
    const nb::object workObject = nb::steal(pySelf);
    const nb::object callable = nb::steal(pyFunction);
    try {
      callable(workObject);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("smdistributed Work callback");
    }
  });
}

void registerWork(nb::module_& module) {
  nb::class_<PyWork>(module, "Work", "Handle of an operation under way.")
      .def("wait", &PyWork::wait, nb::arg("timeout_s") = nb::none(),
           "Blocks (without the GIL) until the operation is complete; raises its error.\n\n"
           "``timeout_s``: seconds to wait at most; None, zero or inf for no limit beyond the\n"
           "operation's own.")
      .def("is_completed", &PyWork::isCompleted, "Whether it has ended, well or not. Never blocks.")
      .def("exception", &PyWork::exception, "The error of a completed operation, else None.")
      .def_static("_add_done_callback", &PyWork::addDoneCallback)
      .def(
          "add_done_callback",
          [](nb::object self, nb::object function) { PyWork::addDoneCallback(self, function); },
          nb::arg("fn"),
          "Calls ``fn(work)`` once the operation is complete: at once, or on the thread that\n"
          "completes it, which is the progress thread or one that waits.")
      .def_prop_ro("is_small", &PyWork::isSmall,
                   "So small that waking a thread for it takes longer than the operation.")
      .def_prop_ro("source", &PyWork::source, "Rank that sent, of a completed receive; else -1.");
}

}  // namespace smd::bindings
