// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The options of a group, from Python's dataclass to the engine's struct: the one place that knows
// both.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/group/options.h"

namespace smd::bindings {

namespace nb = nanobind;

inline bool isAnyOptions(PyObject*) { return true; }

// The type that the stub shows. What it really is, toOptions() finds out field by field.
class PyEngineOptions : public nb::object {
  NB_OBJECT_DEFAULT(PyEngineOptions, nb::object,
                    "smdistributed._common.engine_options.EngineOptions", isAnyOptions)
};

// Throws TypeError for a field that is missing or of another type, and Error(kConfiguration) for a
// transport that there is not.
engine::EngineOptions toOptions(const PyEngineOptions& options);

// Adds check_tls_files(): to learn before any group is made what cannot work.
void registerOptions(nb::module_& module);

}  // namespace smd::bindings
