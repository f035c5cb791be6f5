// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Batons: Python threads of which one runs at a time hand each other the turn.
//
// A threading.Lock would do, but it is released under the GIL: the thread that wakes finds the GIL
// taken, waits once more, and has often put the other one off its processor. Here the GIL goes
// first, so whoever wakes runs.
#include "bindings/baton_py.h"

#include <semaphore.h>

#include <cerrno>

namespace smd::bindings {
namespace {

namespace nb = nanobind;

class Baton {
 public:
  Baton() { sem_init(&given_, /*pshared=*/0, 0); }
  ~Baton() { sem_destroy(&given_); }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;

  void give() { sem_post(&given_); }

  // Waits; what a signal's handler raises ends it, and then nothing has been taken.
  void take() {
    for (;;) {
      bool isTaken;
      {
        nb::gil_scoped_release release;
        isTaken = sem_wait(&given_) == 0;
      }
      if (isTaken) return;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  // Gives `other`, and takes this one.
  void passTo(Baton& other) {
    {
      nb::gil_scoped_release release;
      other.give();
      if (sem_wait(&given_) == 0) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    take();
  }

 private:
  sem_t given_;
};

}  // namespace

void registerBaton(nb::module_& module) {
  nb::class_<Baton>(module, "Baton",
                    "What a thread waits for, and another one gives. Each give() ends one take().")
      .def(nb::init<>())
      .def("give", &Baton::give, "Lets the one that takes it go on, now or when it comes.")
      .def("take", &Baton::take, "Waits until it is given. Raises what a signal's handler raises.")
      .def("pass_to", &Baton::passTo, nb::arg("other"),
           "Gives another one and takes this one, as one call. If a signal's handler raises, the "
           "other has\nbeen given.");
}

}  // namespace smd::bindings
