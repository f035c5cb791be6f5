// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set exports: a constant table of functions, and nothing else.
//
// reduce_kernels.cc is compiled several times with different instruction-set flags. Whatever inline
// function two of these compilations share, the linker merges into one copy, which may be the copy
// made for AVX-512 and then run on a processor without it. Therefore everything such a file defines
// lives in a namespace of its own set (the macro SMD_KERNEL_SET), the file calls no inline function
// from outside that namespace, and its only exported symbol is this constant-initialised table.
#pragma once

#include "common/types.h"
#include "kernels/kernels.h"

namespace smd::kernels {

// Null where the pair cannot be reduced, or the type not scaled.
struct KernelTable {
  ReduceFn reduce[kNumReduceOps][kNumDTypes];
  ScaleFn scale[kNumDTypes];
  CopyFn copy;
};

namespace scalar {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace baseline {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#elif defined(__aarch64__)
namespace neon {
extern const KernelTable kTable;
}
#else
namespace baseline {
extern const KernelTable kTable;
}
#endif

}  // namespace smd::kernels
