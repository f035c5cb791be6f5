// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How kernels() chooses, apart from where the wish comes from: for its tests.
#pragma once

#include <string_view>

#include "kernels/kernels.h"

namespace smd::kernels {

// The set called `wanted`, or the best usable one if that is empty. Throws Error(kConfiguration) if
// no set has that name or this processor cannot run it.
const KernelSet& chooseKernels(std::string_view wanted);

}  // namespace smd::kernels
