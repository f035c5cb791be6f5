// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/python_errors.h"

namespace smd::bindings {
namespace {

struct KindName {
  const char* kind;
  const char* defaultClass;
};
constexpr std::array<KindName, kNumErrorKinds> kNames = {{
    {"configuration", "ConfigurationError"},
    {"mismatch", "MismatchError"},
    {"peer_lost", "PeerLostError"},
    {"timeout", "CollectiveTimeoutError"},
    {"unsupported", "UnsupportedError"},
    {"internal", "InternalError"},
}};

}  // namespace

ErrorClasses::ErrorClasses(nb::handle mapping) {
  const nb::object defaults = nb::module_::import_("smdistributed._common.errors");
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    classes_[i] = nb::getattr(defaults, kNames[i].defaultClass);
    if (!mapping.is_valid() || mapping.is_none()) continue;
    const nb::object given = mapping.attr("get")(kNames[i].kind);
    if (!given.is_none()) classes_[i] = given;
  }
}

nb::object ErrorClasses::toPython(const Error& error) const {
  return classes_[static_cast<std::size_t>(error.kind())](error.what());
}

void ErrorClasses::raise(const Error& error) const {
  PyErr_SetString(classes_[static_cast<std::size_t>(error.kind())].ptr(), error.what());
  throw nb::python_error();
}

}  // namespace smd::bindings
