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

nb::str toStr(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(decoded);
}

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
  return classes_[static_cast<std::size_t>(error.kind())](toStr(error.what()));
}

void ErrorClasses::raise(const Error& error) const {
  PyErr_SetObject(classes_[static_cast<std::size_t>(error.kind())].ptr(),
                  toStr(error.what()).ptr());
  throw nb::python_error();
}

}  // namespace smd::bindings
