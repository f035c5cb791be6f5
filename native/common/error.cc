// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"

#include <cerrno>
#include <new>
#include <system_error>

namespace smd {

const char* reasonOf(const std::exception& error) noexcept {
  const bool isForMemory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return isForMemory ? "this process has no memory left" : error.what();
}

Error systemError(const std::string& call) {
  const int code = errno;
  const std::string text = call + " failed: " + std::generic_category().message(code) + " (errno " +
                           std::to_string(code) + ")";
  if (code == EMFILE || code == ENFILE) {
    return Error(ErrorKind::kConfiguration,
                 text +
                     "; expected a few free file descriptors per rank. Raise the limit "
                     "(ulimit -n), or close files that are not needed.");
  }
  return Error(ErrorKind::kInternal, text);
}

}  // namespace smd
