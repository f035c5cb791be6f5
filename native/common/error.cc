// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"

#include <cerrno>
#include <system_error>

namespace smd {

Error systemError(const std::string& call) {
  const int code = errno;
  return Error(ErrorKind::kInternal, call + " failed: " + std::generic_category().message(code) +
                                         " (errno " + std::to_string(code) + ")");
}

}  // namespace smd
