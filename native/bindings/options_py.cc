// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/options_py.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/duration.h"
#include "bindings/python_errors.h"
#include "common/error.h"

namespace smd::bindings {
namespace {

// Certificate, key, authority.
using TlsFiles = std::tuple<std::string, std::string, std::string>;

nb::object fieldOf(const nb::object& options, const char* field) {
  if (nb::hasattr(options, field)) return options.attr(field);
  throw nb::type_error(("the options of a group have no field " + std::string(field) +
                        "; expected an EngineOptions of smdistributed._common.engine_options. Pass "
                        "EngineOptions.from_settings(process_settings()), or EngineOptions().")
                           .c_str());
}

template <class Value>
Value read(const nb::object& options, const char* field, const char* expected) {
  const nb::object value = fieldOf(options, field);
  try {
    return nb::cast<Value>(value);
  } catch (const nb::cast_error&) {
    throw nb::type_error(("EngineOptions." + std::string(field) + " is of type " +
                          nb::cast<std::string>(nb::str(value.type())) + "; expected " + expected +
                          ". Correct what makes the options.")
                             .c_str());
  }
}

double readSeconds(const nb::object& options, const char* field) {
  return read<double>(options, field, "a number of seconds");
}

engine::TransportChoice toTransport(const std::string& text) {
  if (text == "auto") return engine::TransportChoice::kAuto;
  if (text == "shm") return engine::TransportChoice::kSharedMemory;
  if (text == "tcp") return engine::TransportChoice::kTcp;
  throw Error(ErrorKind::kConfiguration, "transport \"" + text +
                                             "\" is unknown; expected auto, shm or tcp. Set "
                                             "SMDDP_TRANSPORT accordingly or leave it unset.");
}

}  // namespace

engine::EngineOptions toOptions(const PyEngineOptions& options) {
  engine::EngineOptions result;
  result.timeout = toDuration(readSeconds(options, "timeout_s"));
  result.stall = toDuration(readSeconds(options, "stall_s"));
  result.messageLimitBytes =
      read<std::uint64_t>(options, "message_limit_bytes", "a number of bytes, 0 for no limit");
  result.hasSignalReport = read<bool>(options, "signal_report", "a bool");
  result.isDeterministic = read<bool>(options, "deterministic", "a bool");
  result.transport = toTransport(read<std::string>(options, "transport", "a str"));
  result.interfaces = read<std::string>(options, "interfaces", "a str");
  result.rendezvousAddress = read<std::string>(options, "rendezvous_address", "a str");
  if (!fieldOf(options, "token").is_none()) {
    const auto token = read<nb::bytes>(options, "token", "bytes or None");
    result.token.assign(token.c_str(), token.size());
  }
  result.jobRanks = read<std::vector<int>>(options, "job_ranks", "a sequence of int");
  if (!fieldOf(options, "tls").is_none()) {
    const auto files = read<TlsFiles>(
        options, "tls",
        "the paths of certificate, key and authority (a tuple of three str), or None");
    result.tls = {std::get<0>(files), std::get<1>(files), std::get<2>(files)};
  }
  return result;
}

void registerOptions(nb::module_& module) {
  module.def(
      "check_tls_files",
      [](std::string certificate, std::string key, std::string authority) {
        try {
          transport::tcp::checkTlsFiles(
              {std::move(certificate), std::move(key), std::move(authority)});
        } catch (const Error& error) {
          ErrorClasses(nb::none()).raise(error);
        }
      },
      nb::arg("certificate"), nb::arg("key"), nb::arg("authority"),
      "Raises ConfigurationError for PEM files that cannot serve for TLS between ranks: missing,\n"
      "not belonging together, expired, not signed by the authority.");
}

}  // namespace smd::bindings
