// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What the sanitizers cannot do, so that tests can say why they are skipped.
#pragma once

namespace smd::test {

// ThreadSanitizer ends a process that starts a thread after a fork of a process with threads.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kCanStartThreadsInForkedChildren = false;
#else
inline constexpr bool kCanStartThreadsInForkedChildren = true;
#endif
inline constexpr const char* kNoThreadsInForkedChildren =
    "ThreadSanitizer does not support threads in the forked child of a process with threads";

// AddressSanitizer's allocator (gcc 12) is not held over a fork: a child of a process whose other
// threads are allocating may wait for ever for a lock that one of them held.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kMayForkWhileOthersAllocate = false;
#else
inline constexpr bool kMayForkWhileOthersAllocate = true;
#endif
inline constexpr const char* kNoForkWhileOthersAllocate =
    "AddressSanitizer's allocator does not support a fork while other threads allocate";

}  // namespace smd::test
