// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/work_py.h"

#include <nanobind/stl/optional.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/duration.h"
#include "common/per_process.h"

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
// A forked child has an empty one: what its parent's operations use stays with it for good.
Graveyard& graveyard() {
  static PerProcess<Graveyard> instance;
  return instance.get();
}

// With what else there is to be dropped: with the lock, so that who waits for the operation finds
// its object either with its owner or here.
void clearGraveyard(Owner* also) {
  std::vector<PyObject*> objects;
  PyObject* another = nullptr;
  {
    std::lock_guard lock(graveyard().mutex);
    objects.swap(graveyard().objects);
    graveyard().isEmpty.store(true, std::memory_order_relaxed);
    if (also != nullptr) another = std::exchange(also->object, nullptr);
  }
  for (PyObject* object : objects) Py_DECREF(object);
  Py_XDECREF(another);
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

void dropWhatHasEnded() {
  if (!graveyard().isEmpty.load(std::memory_order_relaxed)) clearGraveyard(nullptr);
}

PyWork::PyWork(const std::shared_ptr<engine::Communicator>& communicator,
               std::shared_ptr<ErrorClasses> errors, nb::object holder)
    : communicator_(communicator), errors_(std::move(errors)) {
  if (holder.is_none()) return;
  owner_ = std::make_shared<Owner>(nullptr);
  owner_->object = holder.release().ptr();
}

void PyWork::begin(std::shared_ptr<engine::Work> work) {
  work_ = std::move(work);
  if (owner_ == nullptr) return;
  if (work_->isCompleted()) {  // nobody else has the owner yet
    Py_XDECREF(std::exchange(owner_->object, nullptr));
    owner_.reset();
    return;
  }
  work_->onCompletion([owner = owner_] { bury(*owner); });  // without memory it stays for good
}

bool PyWork::isCompleted() const {
  if (!work_->isCompleted()) {
    work_->startClock(Clock::now());
    return false;
  }
  letGo();
  return true;
}

void PyWork::letGo() const { clearGraveyard(owner_.get()); }

void PyWork::wait(std::optional<double> timeoutSeconds) const {
  if (!work_->isCompleted()) {
    TimePoint end = TimePoint::max();
    if (timeoutSeconds.value_or(0) > 0) end = endAfter(*timeoutSeconds);
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
  if (work_->isCompleted()) letGo();
  if (!work_->isCompleted() || !work_->error()) return nb::borrow<ErrorOrNone>(nb::none());
  return nb::borrow<ErrorOrNone>(errors_->toPython(*work_->error()));
}

namespace {

// What is raised on the main thread when a callback is not where it can be: Ctrl-C, SystemExit.
void raiseLater(nb::python_error& error) {
  auto* kept = new nb::python_error(error);
  const auto raise = [](void* raised) {
    const std::unique_ptr<nb::python_error> it(static_cast<nb::python_error*>(raised));
    it->restore();
    return -1;
  };
  if (Py_AddPendingCall(raise, kept) == 0) return;
  delete kept;  // 32 of them wait already
  error.discard_as_unraisable("smdistributed Work callback");
}

// What Ctrl-C raises concerns neither this callback nor the next: it must not leave one out.
void callBack(const nb::object& callable, const nb::object& work) {
  const bool isMainThread = gettid() == getpid();
  std::optional<nb::python_error> later;
  if (isMainThread && (PyErr_CheckSignals() != 0 || Py_MakePendingCalls() != 0)) later.emplace();
  try {
    callable(work);
  } catch (nb::python_error& error) {
    const bool isForUser =
        error.matches(PyExc_KeyboardInterrupt) || error.matches(PyExc_SystemExit);
    if (isMainThread && isForUser && !later) {
      later.emplace(error);
    } else {
      error.discard_as_unraisable("smdistributed Work callback");
    }
  }
  if (later) raiseLater(*later);
}

}  // namespace

void PyWork::addDoneCallback(nb::object self, nb::object function) {
  if (PyCallable_Check(function.ptr()) == 0) {
    throw nb::type_error(
        "add_done_callback got something that cannot be called; expected fn(work)");
  }
  const PyWork& handle = nb::cast<PyWork&>(self);
  const std::shared_ptr<engine::Work> work = handle.work_;
  if (const auto communicator = handle.communicator_.lock();
      communicator != nullptr && !work->isCompleted()) {
    try {
      communicator->checkUsable();  // nobody would call it
    } catch (const Error& error) {
      handle.errors_->raise(error);
    }
  }
  work->startClock(Clock::now());
  work->onCompletion([pySelf = self.release().ptr(), pyFunction = function.release().ptr()] {
    nb::gil_scoped_acquire acquire;
    const nb::object workObject = nb::steal(pySelf);
    const nb::object callable = nb::steal(pyFunction);
    nb::cast<PyWork&>(workObject).letGo();
    callBack(callable, workObject);
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
          "completes it, which is the progress thread or one that waits. It is to be brief: a\n"
          "blocking call, a wait for another operation and close() are refused there\n"
          "(ConfigurationError). Also refused in a forked child, of an operation of its parent.")
      .def_prop_ro("is_small", &PyWork::isSmall,
                   "So small that waking a thread for it takes longer than the operation.")
      .def_prop_ro("source", &PyWork::source, "Rank that sent, of a completed receive; else -1.");
}

}  // namespace smd::bindings
