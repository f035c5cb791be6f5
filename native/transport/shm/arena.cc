// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace smd::transport::shm {
namespace {

constexpr std::uint64_t kPage = 4096;
// Free bytes that keep their pages: to clear 25 MiB again takes a few milliseconds, to get fresh
// pages for them ten times as long, and steps of a training loop ask for the same sizes again.
constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 20;

}  // namespace

std::shared_ptr<Arena> Arena::create(std::shared_ptr<Region> region, int index) {
  return std::shared_ptr<Arena>(new Arena(std::move(region), index));
}

Arena::Arena(std::shared_ptr<Region> region, int index)
    : region_(std::move(region)), memory_(region_->view(index)) {
  free_.insert({0, memory_.arenaBytes()});
}

std::shared_ptr<SharedBuffer> Arena::allocate(std::size_t bytes, Contents contents) {
  if (bytes == 0 || bytes > memory_.arenaBytes()) return nullptr;
  const std::uint64_t size = (bytes + kPage - 1) / kPage * kPage;
  ByteRange range;
  std::vector<ByteRange> recycled;
  {
    const std::lock_guard lock(mutex_);
    if (isRetired_) return nullptr;
    const auto begin = free_.takeFirstFit(size);
    if (!begin) return nullptr;
    range = {*begin, *begin + size};
    recycled = recycled_.erase(range);
  }
  auto buffer = std::make_shared<SharedBuffer>(shared_from_this(), range, bytes);
  if (contents == Contents::kZeros) {
    for (const ByteRange& part : recycled) {
      std::memset(memory_.arena(memory_.index()) + part.begin, 0, part.size());
    }
  }
  return bringIn(range) ? buffer : nullptr;
}

void Arena::retire() noexcept {
  RangeSet kept;
  {
    const std::lock_guard lock(mutex_);
    isRetired_ = true;
    std::swap(kept, recycled_);
  }
  while (const auto range = kept.takeFirst()) returnPages(*range);
}

void Arena::giveBack(const ByteRange& range) {
  {
    const std::lock_guard lock(mutex_);
    if (!isRetired_ && recycled_.total() + range.size() <= kKeptBytes) {
      recycled_.insert(range);
      free_.insert(range);
      return;
    }
  }
  const bool isEmpty = returnPages(range);  // nobody else can get the range meanwhile
  const std::lock_guard lock(mutex_);
  if (isRetired_) return;
  if (!isEmpty) recycled_.insert(range);
  free_.insert(range);
}

bool Arena::bringIn(const ByteRange& range) const {
  int status;
  do {
    status =
        madvise(memory_.arena(memory_.index()) + range.begin, range.size(), MADV_POPULATE_WRITE);
  } while (status != 0 && (errno == EINTR || errno == EAGAIN));
  // Other errors: the kernel does not know the advice, and pages come when they are touched.
  return status == 0 || (errno != ENOMEM && errno != EFAULT);
}

bool Arena::returnPages(const ByteRange& range) const {
  return region_->returnPages(memory_.arena(memory_.index()) + range.begin, range.size());
}

SharedBuffer::SharedBuffer(std::shared_ptr<Arena> arena, ByteRange range, std::size_t size)
    : arena_(std::move(arena)), range_(range), size_(size) {}

SharedBuffer::~SharedBuffer() {
  // A child's copy of the lock may be held for ever, and what is free is the parent's business.
  if (isLeft_ || isForkedChild(arena_->generation_)) return;
  try {
    arena_->giveBack(range_);
  } catch (const std::bad_alloc&) {  // it stays taken: better than to end the process
  }
}

std::byte* SharedBuffer::data() const {
  return arena_->memory_.arena(arena_->memory_.index()) + range_.begin;
}

}  // namespace smd::transport::shm
