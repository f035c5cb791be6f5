// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The sets built into this library, and the choice among them.
#include "kernels/select.h"

#include <cstdlib>
#include <string>

#include "common/error.h"
#include "kernels/kernel_table.h"

namespace smd::kernels {
namespace {

class TableSet final : public KernelSet {
 public:
  using Probe = bool (*)();
  TableSet(std::string_view name, Probe probe, const KernelTable& table)
      : name_(name), probe_(probe), table_(table) {}

  std::string_view name() const override { return name_; }
  bool isUsable() const override { return probe_(); }

  ReduceFn reduce(ReduceOp op, DType type) const override {
    const auto row = static_cast<std::size_t>(op);
    const auto column = static_cast<std::size_t>(type);
    return row < kNumReduceOps && column < kNumDTypes ? table_.reduce[row][column] : nullptr;
  }

  ScaleFn scale(DType type) const override {
    const auto column = static_cast<std::size_t>(type);
    return column < kNumDTypes ? table_.scale[column] : nullptr;
  }

  CopyFn copy() const override { return table_.copy; }

 private:
  std::string_view name_;
  Probe probe_;
  const KernelTable& table_;
};

bool always() { return true; }

#if defined(__x86_64__)
// The instructions that CMakeLists.txt lets the compiler use in each set. libgcc also asks whether
// the operating system saves the wide registers.
bool hasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }

bool hasAvx512() {
  return hasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

std::string namesOfUsableSets() {
  std::string names;
  for (const KernelSet* set : allKernelSets()) {
    if (set->isUsable()) {
      names.append(names.empty() ? "" : ", ").append(set->name());
    }
  }
  return names;
}

}  // namespace

std::span<const KernelSet* const> allKernelSets() {
  // From the plainest to the best. The avx512 set is the same text as the others in wider vectors,
  // and has the same tests; but so far they have only been skipped, for want of such a processor.
  static const TableSet scalarSet("scalar", always, scalar::kTable);
#if defined(__x86_64__)
  static const TableSet baselineSet("baseline", always, baseline::kTable);
  static const TableSet avx2Set("avx2", hasAvx2, avx2::kTable);
  static const TableSet avx512Set("avx512", hasAvx512, avx512::kTable);
  static const KernelSet* const sets[] = {&scalarSet, &baselineSet, &avx2Set, &avx512Set};
#elif defined(__aarch64__)
  static const TableSet neonSet("neon", always, neon::kTable);
  static const KernelSet* const sets[] = {&scalarSet, &neonSet};
#else
  static const TableSet baselineSet("baseline", always, baseline::kTable);
  static const KernelSet* const sets[] = {&scalarSet, &baselineSet};
#endif
  return sets;
}

const KernelSet& chooseKernels(std::string_view wanted) {
  const KernelSet* best = nullptr;
  for (const KernelSet* set : allKernelSets()) {
    if (wanted.empty()) {
      best = set->isUsable() ? set : best;
    } else if (set->name() == wanted) {
      if (!set->isUsable()) {
        throw Error(ErrorKind::kConfiguration,
                    "SMDDP_KERNELS=" + std::string(wanted) +
                        " asks for instructions that this processor does not have; expected one "
                        "of: " +
                        namesOfUsableSets() + ". Unset SMDDP_KERNELS to use the best of them.");
      }
      return *set;
    }
  }
  if (best == nullptr) {
    throw Error(ErrorKind::kConfiguration,
                "SMDDP_KERNELS=" + std::string(wanted) +
                    " names no set of reduction kernels; expected one of: " + namesOfUsableSets() +
                    ". Unset SMDDP_KERNELS to use the best of them.");
  }
  return *best;
}

const KernelSet& kernels() {
  static const KernelSet& chosen = [&]() -> const KernelSet& {
    const char* wanted = std::getenv("SMDDP_KERNELS");
    return chooseKernels(wanted == nullptr ? std::string_view() : std::string_view(wanted));
  }();
  return chosen;
}

ReduceFn reduceOrThrow(ReduceOp op, DType type) {
  if (const ReduceFn function = kernels().reduce(op, type)) {
    return function;
  }
  std::string advice;
  if (type == DType::kOpaque8) {
    advice =
        "This type only moves as bytes: cast the tensor to a type with arithmetic, such as "
        "bfloat16 or int32, before reducing it.";
  } else if (op == ReduceOp::kAvg) {
    advice =
        "True and false have no average: cast the tensor to a floating type, or reduce with BAND "
        "or BOR.";
  } else if (op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor) {
    advice = "Cast the tensor to an integer type or bool, or view its bytes as one.";
  } else {
    advice =
        "Complex numbers have no order: reduce the real and imaginary parts, or the absolute "
        "values, instead.";
  }
  std::string expected;
  for (int candidate = 0; candidate < kNumReduceOps; ++candidate) {
    const auto other = static_cast<ReduceOp>(candidate);
    if (kernels().reduce(other, type) != nullptr) {
      expected.append(expected.empty() ? "" : ", ").append(name(other));
    }
  }
  throw Error(ErrorKind::kUnsupported,
              "Cannot reduce " + std::string(name(type)) + " with " + std::string(name(op)) +
                  "; expected one of: " + (expected.empty() ? "nothing" : expected) + ". " +
                  advice);
}

void copy(void* dst, const void* src, std::size_t bytes) {
  static const CopyFn best = kernels().copy();
  best(dst, src, bytes);
}

}  // namespace smd::kernels
