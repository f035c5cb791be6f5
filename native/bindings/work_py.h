// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "bindings/python_errors.h"
#include "engine/group/communicator.h"

namespace smd::bindings {

inline bool isAnyObject(PyObject*) { return true; }

class ErrorOrNone : public nb::object {
  NB_OBJECT_DEFAULT(ErrorOrNone, nb::object, "BaseException | None", isAnyObject)
};

// Releases the buffers of operations that have ended and that no thread has waited for.
void dropWhatHasEnded();

// The Python handle of an operation.
class PyWork {
 public:
  struct Owner;

  // Of an operation that has not begun: without memory it never does. Needs begin() or letGo().
  // `holder` is kept until the operation is complete, even if the handle is dropped.
  PyWork(const std::shared_ptr<engine::Communicator>& communicator,
         std::shared_ptr<ErrorClasses> errors, nb::object holder);
  // It has: what it uses stays held from here on, whatever is thrown.
  void begin(std::shared_ptr<engine::Work> work);
  // It is complete, or will never begin. Drops what kept its memory, and that of others.
  void letGo() const;

  void wait(std::optional<double> timeoutSeconds) const;
  bool isCompleted() const;
  ErrorOrNone exception() const;
  int source() const { return work_->source(); }
  bool isSmall() const { return work_->isSmall; }
  static void addDoneCallback(nb::object self, nb::object function);

 private:
  std::shared_ptr<engine::Work> work_;
  std::shared_ptr<Owner> owner_;  // null: there was none
  std::weak_ptr<engine::Communicator> communicator_;
  std::shared_ptr<ErrorClasses> errors_;
};

void registerWork(nb::module_& module);

}  // namespace smd::bindings
