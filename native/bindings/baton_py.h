// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace smd::bindings {

// Adds Baton, with which Python threads take turns.
void registerBaton(nanobind::module_& module);

}  // namespace smd::bindings
