// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/work_py.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/duration.h"

namespace smd::bindings {
namespace {

using Drive = engine::Communicator::Drive;

}  // namespace

// Guarded by the graveyard's lock.
struct PyWork::Owner {
  PyObject* object;
};

namespace {

using Owner = PyWork::Owner;

// Objects whose operation ended on a thread that does not hold the GIL; dropped by the next one
// that does. Taking the GIL for it would make every asynchronous operation wait for the
// interpreter.
struct Graveyard {
  std::atomic<bool> isEmpty{true};  // looked at without the lock
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
Graveyard& graveyard() {
  static auto* instance = new Graveyard;
  return *instance;
}

// With what else there is to be dropped: with the lock, so that who waits for the operation finds
// its object either with its owner or here.
void clearGraveyard(Owner* also) {
  std::vector<PyObject*> objects;
  {
    std::lock_guard lock(graveyard().mutex);
    objects.swap(graveyard().objects);
    graveyard().isEmpty.store(true, std::memory_order_relaxed);
    if (also != nullptr && also->object != nullptr) {
      objects.push_back(std::exchange(also->object, nullptr));
    }
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

void bury(Owner& owner) noexcept try {
  std::lock_guard lock(graveyard().mutex);
  if (owner.object == nullptr) return;
  graveyard().objects.push_back(owner.object);
  owner.object = nullptr;
  graveyard().isEmpty.store(false, std::memory_order_relaxed);
} catch (const std::bad_alloc&) {  // who waits for the operation drops it; else it stays
}

}  // namespace

nb::object holderOf(nb::object owner) {
  if (PyTuple_CheckExact(owner.ptr()) != 0) {
    bool isNew = false;
    nb::list holders;
    for (nb::handle each : nb::borrow<nb::tuple>(owner)) {
      nb::object holder = holderOf(nb::borrow(each));
      isNew = isNew || !holder.is(each);
      holders.append(holder);
    }
    return isNew ? nb::object(nb::tuple(holders)) : owner;
  }
  if (PyList_CheckExact(owner.ptr()) != 0) return holderOf(nb::tuple(owner));
  if (PyObject_CheckBuffer(owner.ptr()) == 0) return owner;
  PyObject* const view = PyMemoryView_FromObject(owner.ptr());
  if (view != nullptr) return nb::steal(view);
  PyErr_Clear();
  return owner;
}

void dropWhatHasEnded() {
  if (!graveyard().isEmpty.load(std::memory_order_relaxed)) clearGraveyard(nullptr);
}

PyWork::PyWork(std::shared_ptr<engine::Work> work,
               const std::shared_ptr<engine::Communicator>& communicator,
               std::shared_ptr<ErrorClasses> errors, nb::object holder)
    : work_(std::move(work)), communicator_(communicator), errors_(std::move(errors)) {
  dropWhatHasEnded();
  if (holder.is_none() || work_->isCompleted()) return;
  PyObject* const object = holder.release().ptr();  // without memory below it stays for good
  owner_ = std::make_shared<Owner>(object);
  work_->onCompletion([owner = owner_] { bury(*owner); });
}

bool PyWork::isCompleted() const {
  if (!work_->isCompleted()) {
    work_->startClock(Clock::now());
    return false;
  }
  letGo();
  return true;
}

// Of a completed operation: what kept its memory, and that of others.
void PyWork::letGo() const { clearGraveyard(owner_.get()); }

void PyWork::wait(nb::handle timeoutSeconds) const {
  if (!work_->isCompleted()) {
    TimePoint end = TimePoint::max();
    if (timeoutSeconds.is_valid() && !timeoutSeconds.is_none()) {
      const double limit = nb::cast<double>(timeoutSeconds);
      if (limit > 0) end = endAfter(limit);
    }
    Drive result = Drive::kDone;
    std::optional<Error> refused;
    {
      nb::gil_scoped_release release;
      if (const auto communicator = communicator_.lock()) {
        try {
          result = communicator->wait(*work_, end);
        } catch (const Error& error) {
          refused = error;
        }
      }  // else it has been closed, which completes its operations
    }
    if (refused) errors_->raise(*refused);
    if (result == Drive::kInterrupted) throw nb::python_error();
    if (result == Drive::kNotYet) {
      errors_->raise(
          Error(ErrorKind::kTimeout,
                describe(work_->signature()) +
                    " is still under way when the time given to wait() is over; expected "
                    "it to be complete. Wait longer; the operation goes on."));
    }
  }
  letGo();
  if (work_->error()) errors_->raise(*work_->error());
}

ErrorOrNone PyWork::exception() const {
  if (!work_->isCompleted() || !work_->error()) return nb::borrow<ErrorOrNone>(nb::none());
  return nb::borrow<ErrorOrNone>(errors_->toPython(*work_->error()));
}

void PyWork::addDoneCallback(nb::object self, nb::object function) {
  const std::shared_ptr<engine::Work> work = nb::cast<PyWork&>(self).work_;
  work->startClock(Clock::now());
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
  module.def(
      "hold", [](nb::object arrays) { return nb::borrow<nb::any>(holderOf(std::move(arrays))); },
      nb::arg("arrays").none(),
      "What keeps the memory of arrays where it is, for use in their place: of one with the "
      "buffer\nprotocol a memoryview, which makes resizing it a BufferError; of those in tuples "
      "and lists,\na tuple of such; anything else as it is.");
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
          "completes it, which is the progress thread or one that waits. It is to be brief, and\n"
          "must not wait for another operation (ConfigurationError).")
      .def_prop_ro("is_small", &PyWork::isSmall,
                   "So small that waking a thread for it takes longer than the operation.")
      .def_prop_ro("source", &PyWork::source, "Rank that sent, of a completed receive; else -1.");
}

}  // namespace smd::bindings
