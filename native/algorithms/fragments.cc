// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/fragments.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace smd::algorithms {

void Input::copy(std::byte* to, std::uint64_t begin, std::uint64_t bytes) const {
  if (bytes == 0) return;
  if (request_.fragments.empty()) return kernels::copy(to, request_.input + begin, bytes);
  const std::uint64_t end = begin + bytes;
  std::uint64_t at = begin;
  const auto clearUntil = [&](std::uint64_t next) {
    if (at < next) std::memset(to + (at - begin), 0, next - at);
    at = std::max(at, next);
  };
  const auto last = request_.fragments.end();
  for (auto each = find(begin); each != last && each->offset < end; ++each) {
    clearUntil(each->offset);
    const std::uint64_t here = std::min(end, each->offset + each->bytes) - at;
    kernels::copy(to + (at - begin), each->data + (at - each->offset), here);
    at += here;
  }
  clearUntil(end);
}

const std::byte* Input::read(std::uint64_t begin, std::uint64_t bytes, std::byte* room) const {
  if (request_.fragments.empty()) return request_.input + begin;
  const auto found = find(begin);
  const bool isWhole = found != request_.fragments.end() && found->offset <= begin &&
                       begin + bytes <= found->offset + found->bytes;
  if (isWhole) return found->data + (begin - found->offset);
  copy(room, begin, bytes);
  return room;
}

Fragments::const_iterator Input::find(std::uint64_t begin) const {
  return std::ranges::partition_point(request_.fragments, [begin](const Fragment& each) {
    return each.offset + each.bytes <= begin;
  });
}

void joinFragments(Request& request) {
  if (request.fragments.empty()) return;
  Input(request).copy(request.output, 0, request.count * elementSize(request.dtype));
  request.fragments.clear();
  request.input = request.output;
}

}  // namespace smd::algorithms
