# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# smd_options: the compiler flags that every target of ours gets. An INTERFACE target rather than
# global flags, so that nanobind's own sources are not held to our warnings.

add_library(smd_options INTERFACE)
target_compile_options(smd_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  # Release means -O3 whatever the toolchain file or the packager's CXXFLAGS leave as default.
  $<$<CONFIG:Release>:-O3>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns about string concatenation in its own headers (GCC bug 105651, fixed in 13).
  target_compile_options(smd_options INTERFACE -Wno-restrict)
endif()
if(SMD_WARNINGS_AS_ERRORS)
  target_compile_options(smd_options INTERFACE -Werror)
endif()

if(SMD_SANITIZE)
  set(_allowed "address" "thread" "undefined" "address,undefined")
  if(NOT SMD_SANITIZE IN_LIST _allowed)
    list(JOIN _allowed " | " _allowed_text)
    message(FATAL_ERROR
      "SMD_SANITIZE=${SMD_SANITIZE} is not a known combination; expected one of ${_allowed_text}. "
      "Pass -DSMD_SANITIZE= to build without sanitizers.")
  endif()
  # -O1: asserts stay on (a Debug build) while the kernels keep enough speed to be tested.
  # Frame pointers keep the reports' stacks whole; the first undefined behaviour ends the test
  # (without it UBSan prints a line and the test passes).
  set(_sanitize_flags -fsanitize=${SMD_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
  if(SMD_SANITIZE MATCHES "undefined")
    # It asks by a pipe whether an object can be read, and calls each invalid where a test leaves no
    # descriptor for one.
    list(APPEND _sanitize_flags -fno-sanitize=vptr)
  endif()
  target_compile_options(smd_options INTERFACE ${_sanitize_flags} -g -O1)
  target_link_options(smd_options INTERFACE ${_sanitize_flags})
endif()

if(SMD_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR
      "SMD_BUILD_FUZZERS is set and the compiler is ${CMAKE_CXX_COMPILER_ID}; expected Clang, which "
      "libFuzzer comes with. Pass -DCMAKE_CXX_COMPILER=clang++, or use `make fuzz`.")
  endif()
  # Lets the fuzzer see which branches an input takes.
  target_compile_options(smd_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
