// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Errors as TensorFlow shows them: a status code, and a text that begins with the name of our
// Python class of the same meaning, which toolkits look for in a job's output.
//
// Source: dataparallel specification, section 9.
#pragma once

#include <string>

#include "common/error.h"
#include "tensorflow_ops/api.h"

namespace smd::tensorflow_ops {

struct Failure {
  TfCode code;
  std::string text;
};

// `key`: what the operation was for.
Failure failureOf(const Error& error, const std::string& key);
// There is no group: init() has not been called, or shutdown() has.
Failure notInitialized(const std::string& key);

}  // namespace smd::tensorflow_ops
