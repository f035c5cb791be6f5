// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/api.h"

#include <dlfcn.h>

namespace smd::tensorflow_ops {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

Api& current() {
  static Api functions;
  return functions;
}

}  // namespace

const Api& api() { return current(); }

void setApi(const Api& functions) { current() = functions; }

std::string findApi(Api& functions) {
  // Only if it is there already: Python has imported it, from wherever it lies.
  void* library = dlopen(kLibrary, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) {
    return std::string(kLibrary) + " is not loaded; import tensorflow first";
  }
  std::string missing;
#define SMD_TF_FIND(result, name, parameters)                                           \
  functions.name = reinterpret_cast<result(*) parameters>(dlsym(library, "TF_" #name)); \
  if (functions.name == nullptr)                                                        \
    missing += std::string(missing.empty() ? "" : ", ") +                               \
               "TF"                                                                     \
               "_" #name;
  SMD_TF_FUNCTIONS(SMD_TF_FIND)
#undef SMD_TF_FIND
  // The library stays open: it is TensorFlow itself.
  if (missing.empty()) return "";
  return std::string(kLibrary) + " lacks " + missing;
}

}  // namespace smd::tensorflow_ops
