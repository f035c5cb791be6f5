// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A set of numbers, kept as ranges that neither touch nor overlap: the free part of an arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace smd::transport::shm {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

class RangeSet {
 public:
  std::uint64_t total() const { return total_; }

  // Adds `range`, of which nothing may be in the set yet.
  void insert(ByteRange range) {
    if (range.size() == 0) return;
    total_ += range.size();
    auto next = ranges_.lower_bound(range.begin);
    if (next != ranges_.end() && next->first == range.end) {
      range.end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto previous = std::prev(next);
      if (previous->second == range.begin) {
        previous->second = range.end;
        return;
      }
    }
    ranges_.emplace_hint(next, range.begin, range.end);
  }

  // Takes out what is in `range`; returns it in ascending order.
  std::vector<ByteRange> erase(const ByteRange& range) {
    std::vector<ByteRange> taken;
    auto it = ranges_.lower_bound(range.begin);
    if (it != ranges_.begin() && std::prev(it)->second > range.begin) --it;
    while (it != ranges_.end() && it->first < range.end) {
      const ByteRange found{it->first, it->second};
      it = ranges_.erase(it);
      const ByteRange part{std::max(found.begin, range.begin), std::min(found.end, range.end)};
      if (part.size() == 0) continue;
      if (found.begin < part.begin) ranges_.emplace(found.begin, part.begin);
      if (part.end < found.end) ranges_.emplace(part.end, found.end);
      total_ -= part.size();
      taken.push_back(part);
    }
    return taken;
  }

  // The lowest of the ranges, if there is one.
  std::optional<ByteRange> takeFirst() noexcept {
    if (ranges_.empty()) return std::nullopt;
    const ByteRange first{ranges_.begin()->first, ranges_.begin()->second};
    ranges_.erase(ranges_.begin());
    total_ -= first.size();
    return first;
  }

  // Takes `size` out of the first range that holds so much; returns where.
  std::optional<std::uint64_t> takeFirstFit(std::uint64_t size) {
    const auto found = std::find_if(ranges_.begin(), ranges_.end(), [size](const auto& range) {
      return range.second - range.first >= size;
    });
    if (found == ranges_.end()) return std::nullopt;
    const std::uint64_t begin = found->first;
    erase({begin, begin + size});
    return begin;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
  std::uint64_t total_ = 0;
};

}  // namespace smd::transport::shm
