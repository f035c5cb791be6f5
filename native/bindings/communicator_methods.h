// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The methods of `_native.Communicator`, one function and one file per topic. The order in which
// registerCommunicator() calls them is that of the stub.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/communicator_py.h"

namespace smd::bindings {

using CommunicatorClass = nb::class_<PyCommunicator>;

void addDiagnosis(CommunicatorClass& communicator);     // diagnosis_py.cc
void addSharedMemory(CommunicatorClass& communicator);  // shared_buffer_py.cc
void addMessages(CommunicatorClass& communicator);      // message_py.cc
void addReductions(CommunicatorClass& communicator);    // reductions_py.cc
void addMovements(CommunicatorClass& communicator);     // movements_py.cc
void addPointToPoint(CommunicatorClass& communicator);  // point_to_point_py.cc

}  // namespace smd::bindings
