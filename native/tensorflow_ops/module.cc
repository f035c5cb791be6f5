// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The library _tensorflow_operations.so. tf.load_op_library() loads it and finds the operations
// that appear meanwhile, so they are registered by a constructor; Python calls the functions by
// ctypes (src/smdistributed/dataparallel/tensorflow/operations/kernels.py).
#include <cstdint>
#include <exception>
#include <string>

#include "plugin_api/group.h"
#include "tensorflow_ops/api.h"
#include "tensorflow_ops/groups.h"
#include "tensorflow_ops/probe_group.h"
#include "tensorflow_ops/registration.h"

#define SMD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Never destroyed: Python may ask while static destructors run.
std::string& problem() {
  static auto* text = new std::string;
  return *text;
}

__attribute__((constructor)) void load() {
  try {
    smd::tensorflow_ops::Api functions;
    problem() = smd::tensorflow_ops::findApi(functions);
    if (!problem().empty()) return;
    smd::tensorflow_ops::setApi(functions);
    problem() = smd::tensorflow_ops::registerOperations();
  } catch (const std::exception& exception) {
    problem() = exception.what();
  }
}

}  // namespace

// Why there are no operations; empty if there are.
SMD_EXPORT const char* smd_tensorflow_problem() { return problem().c_str(); }

// `address`: of a plugin_api::Handle. Returns whether it is one of this build.
SMD_EXPORT int smd_tensorflow_set_group(std::int64_t id, std::uintptr_t address) {
  const auto* handle = reinterpret_cast<const smd::plugin_api::Handle*>(address);
  if (handle == nullptr || handle->version != smd::plugin_api::Handle::kVersion) return 0;
  smd::tensorflow_ops::setGroup(id, handle->group);
  return 1;
}

SMD_EXPORT void smd_tensorflow_clear_group(std::int64_t id) { smd::tensorflow_ops::clearGroup(id); }

// For the check of an unknown TensorFlow: see probe_group.h.
SMD_EXPORT void smd_tensorflow_set_probe_group(std::int64_t id) {
  smd::tensorflow_ops::setGroup(id, smd::tensorflow_ops::makeProbeGroup());
}
