// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace smd::bindings {

// Adds buffer(object, writable) -> (address, number of elements, dtype code).
void registerBuffer(nanobind::module_& module);

}  // namespace smd::bindings
