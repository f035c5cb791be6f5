// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <string>

namespace smd {

void logWarning(std::string_view text) {
  std::string line = "[smdistributed] WARNING: ";
  line += text;
  line += '\n';
  // One call, so that lines of several ranks do not mix. If stderr is gone there is nobody to tell.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace smd
