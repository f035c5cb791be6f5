// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace smd::bindings {

void registerCommunicator(nanobind::module_& module);

// Closes every communicator of the process and ends the progress thread, so that no thread of ours
// wants the GIL while the interpreter goes away.
void prepareExit();

}  // namespace smd::bindings
