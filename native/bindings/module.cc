// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// smdistributed.collectives._native: the engine as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cctype>
#include <string>
#include <vector>

#include "bindings/baton_py.h"
#include "bindings/buffer_py.h"
#include "bindings/communicator_py.h"
#include "bindings/diagnosis_py.h"
#include "bindings/flight_py.h"
#include "bindings/message_py.h"
#include "bindings/options_py.h"
#include "bindings/request_py.h"
#include "bindings/shared_buffer_py.h"
#include "bindings/trace_py.h"
#include "bindings/work_py.h"
#include "common/cpu.h"
#include "common/file_descriptor.h"
#include "common/types.h"
#include "kernels/kernels.h"

namespace {

template <class Enum>
void addCodes(nanobind::module_& module, int count) {
  for (int code = 0; code < count; ++code) {
    std::string constant(smd::name(static_cast<Enum>(code)));
    for (char& letter : constant)
      letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    module.attr(constant.c_str()) = code;
  }
}

// The public enum: what `op` is in smdistributed.collectives.
void addReduceOps(nanobind::module_& module) {
  nanobind::enum_<smd::ReduceOp>(module, "ReduceOp", nanobind::is_arithmetic(),
                                 "How elements are combined. AVG is for numbers; of integers it is "
                                 "divided towards zero.")
#define SMD_VALUE(constant, name, meaning) .value(name, smd::ReduceOp::constant, meaning)
      SMD_REDUCE_OPS(SMD_VALUE);
#undef SMD_VALUE
}

// Names in the order of their codes.
std::vector<std::string> dtypeNames() {
  std::vector<std::string> names;
  for (int code = 0; code < smd::kNumDTypes; ++code) {
    names.emplace_back(smd::name(static_cast<smd::DType>(code)));
  }
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
  // torch keeps process groups until the process is gone, and a script need not destroy them: what
  // is still alive then is no mistake, and twenty lines about it on every rank help nobody.
  nanobind::set_leak_warnings(false);
  smd::raiseDescriptorLimit();
  module.doc() = "The collectives engine. See smdistributed.collectives for the public face.";
  addCodes<smd::DType>(module, smd::kNumDTypes);
  addCodes<smd::ReduceOp>(module, smd::kNumReduceOps);
  addReduceOps(module);
  module.def("dtype_names", &dtypeNames,
             "Names of the dtypes by code, as torch and NumPy have them; but opaque8, which is for "
             "what\nmoves as bytes.");
  module.def(
      "element_bytes", [](int dtype) { return smd::elementSize(static_cast<smd::DType>(dtype)); },
      nanobind::arg("dtype"), "Bytes of an element; 0 for a code that there is not.");
  smd::bindings::registerBuffer(module);
  smd::bindings::registerWork(module);
  smd::bindings::registerSharedBuffer(module);
  smd::bindings::registerMessage(module);
  smd::bindings::registerRequest(module);
  smd::bindings::registerOptions(module);
  smd::bindings::registerCommunicator(module);
  smd::bindings::registerDiagnosis(module);
  smd::bindings::registerTrace(module);
  smd::bindings::registerBaton(module);
  smd::bindings::registerFlight(module);
  module.def("prepare_exit", &smd::bindings::prepareExit,
             "Closes every communicator of this process and ends its threads.");
  module.def(
      "kernel_set",
      [] {
        const std::string name(smd::kernels::kernels().name());
        return nanobind::str(name.c_str());
      },
      "Instruction set of the reductions in use.");
  module.def("usable_cores", &smd::usableCores,
             "Processors this process may use: affinity mask and cgroup quota respected.");
}
