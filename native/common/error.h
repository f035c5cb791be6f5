// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The few kinds of error the engine knows. The bindings map each kind to a Python class; a front
// end (torch, TensorFlow) may pass its own documented subclasses when it creates a communicator.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace smd {

enum class ErrorKind : std::uint8_t {
  kConfiguration = 0,  // a bad argument or setting of the caller
  kMismatch = 1,       // ranks disagree on operation, order, dtype, size, reduce op or root
  kPeerLost = 2,       // a rank died, left, or its connection closed
  kTimeout = 3,        // a deadline passed
  kUnsupported = 4,    // nothing here can do it
  kInternal = 5,       // our own mistake or a failing system call
};
inline constexpr int kNumErrorKinds = 6;

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// What `error` says, for people: that of a failed allocation names itself only.
const char* reasonOf(const std::exception& error) noexcept;

// An Error of kind kInternal that names the failing system call and errno's text.
Error systemError(const std::string& call);

}  // namespace smd
