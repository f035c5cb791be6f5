// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A group of one rank without an engine, whose operations end on another thread, some time after
// the call: for finding out, in a process of its own, whether a TensorFlow takes that.
#pragma once

#include <memory>

#include "plugin_api/group.h"

namespace smd::tensorflow_ops {

std::shared_ptr<plugin_api::Group> makeProbeGroup();

}  // namespace smd::tensorflow_ops
