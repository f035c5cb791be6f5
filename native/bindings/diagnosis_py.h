// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace smd::bindings {

// What Python may ask about all groups of this process.
void registerDiagnosis(nanobind::module_& module);

}  // namespace smd::bindings
