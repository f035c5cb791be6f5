// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/failure.h"

#include <string_view>

namespace smd::tensorflow_ops {
namespace {

struct Meaning {
  TfCode code;
  std::string_view className;
};

Meaning meaningOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfiguration:
      return {TfCode::kInvalidArgument, "SMDDPConfigInvalid"};
    case ErrorKind::kMismatch:
      return {TfCode::kInvalidArgument, "SMDDPMismatch"};
    case ErrorKind::kPeerLost:
      // Not UNAVAILABLE: in graphs TensorFlow makes an INTERNAL of that, and says so below.
      return {TfCode::kAborted, "SMDDPPeerLost"};
    case ErrorKind::kTimeout:
      return {TfCode::kDeadlineExceeded, "SMDDPTimeoutError"};
    case ErrorKind::kUnsupported:
      return {TfCode::kUnimplemented, "SMDDPUnsupported"};
    case ErrorKind::kInternal:
      break;
  }
  return {TfCode::kInternal, "SMDDPError"};
}

std::string withKey(std::string_view className, std::string_view text, const std::string& key) {
  if (text.ends_with('.')) text.remove_suffix(1);
  std::string all(className);
  all.append(": ").append(text);
  if (!key.empty()) all.append("; in ").append(key);
  return all;
}

}  // namespace

Failure failureOf(const Error& error, const std::string& key) {
  const Meaning meaning = meaningOf(error.kind());
  return {meaning.code, withKey(meaning.className, error.what(), key)};
}

Failure notInitialized(const std::string& key) {
  return {TfCode::kFailedPrecondition,
          withKey("SMDDPNotInitialized",
                  "an operation ran outside of a job, or in a group that has been left; expected "
                  "one that is there. Call init() before, and shutdown() or close_group() after, "
                  "whatever communicates",
                  key)};
}

}  // namespace smd::tensorflow_ops
