// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "bindings/python_errors.h"
#include "engine/communicator.h"

namespace smd::bindings {

inline bool isAnyObject(PyObject*) { return true; }

class ErrorOrNone : public nb::object {
  NB_OBJECT_DEFAULT(ErrorOrNone, nb::object, "BaseException | None", isAnyObject)
};

// What keeps the memory of `owner` where it is: of an object with a buffer, which is not to be
// resized meanwhile, a view; of what is in tuples and lists, of each. To be made before the
// operation begins.
nb::object holderOf(nb::object owner);

// Lets go of the buffers of operations that have ended and that nobody has waited for.
void dropWhatHasEnded();

// The Python handle of an operation.
class PyWork {
 public:
  struct Owner;

  // `holder` is kept until the operation is complete, even if the handle is dropped.
  PyWork(std::shared_ptr<engine::Work> work,
         const std::shared_ptr<engine::Communicator>& communicator,
         std::shared_ptr<ErrorClasses> errors, nb::object holder);

  void wait(nb::handle timeoutSeconds) const;
  bool isCompleted() const;
  ErrorOrNone exception() const;
  int source() const { return work_->source(); }
  bool isSmall() const { return work_->isSmall; }
  static void addDoneCallback(nb::object self, nb::object function);

 private:
  void letGo() const;

  std::shared_ptr<engine::Work> work_;
  std::shared_ptr<Owner> owner_;  // null: there was none, or it was complete at once
  std::weak_ptr<engine::Communicator> communicator_;
  std::shared_ptr<ErrorClasses> errors_;
};

void registerWork(nb::module_& module);

}  // namespace smd::bindings
