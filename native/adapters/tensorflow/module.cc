// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The library _tensorflow_operations.so. tf.load_op_library() loads it and finds the operations
// that appear meanwhile, so they are registered by a constructor; Python calls the functions by
// ctypes (src/smdistributed/dataparallel/tensorflow/operations/kernels.py).
#include <cstdint>
#include <exception>
#include <string>

#include "adapters/tensorflow/api.h"
#include "adapters/tensorflow/groups.h"
#include "adapters/tensorflow/probe_group.h"
#include "adapters/tensorflow/registration.h"
#include "seam/group.h"

#define SMD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Never destroyed: Python may ask while static destructors run.
std::string& problem() {
  static auto* text = new std::string;
  return *text;
}

__attribute__((constructor)) void load() {
  try {
    smd::tensorflow::Api functions;
    problem() = smd::tensorflow::findApi(functions);
    if (!problem().empty()) return;
    smd::tensorflow::setApi(functions);
    problem() = smd::tensorflow::registerOperations();
  } catch (const std::exception& exception) {
    problem() = exception.what();
  }
}

}  // namespace

// Why there are no operations; empty if there are.
SMD_EXPORT const char* smd_tensorflow_problem() { return problem().c_str(); }

// `address`: of a seam::Handle. Returns whether it is one of this build.
SMD_EXPORT int smd_tensorflow_set_group(std::int64_t id, std::uintptr_t address) {
  const auto* handle = reinterpret_cast<const smd::seam::Handle*>(address);
  if (handle == nullptr || handle->version != smd::seam::Handle::kVersion) return 0;
  smd::tensorflow::setGroup(id, handle->group);
  return 1;
}

SMD_EXPORT void smd_tensorflow_clear_group(std::int64_t id) { smd::tensorflow::clearGroup(id); }

// For the check of an unknown TensorFlow: see probe_group.h.
SMD_EXPORT void smd_tensorflow_set_probe_group(std::int64_t id) {
  smd::tensorflow::setGroup(id, smd::tensorflow::makeProbeGroup());
}
