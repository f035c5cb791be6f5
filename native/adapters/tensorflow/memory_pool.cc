// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "adapters/tensorflow/memory_pool.h"

#include <iterator>
#include <new>
#include <utility>

namespace smd::tensorflow {
namespace {

constexpr std::size_t kPage = 4096;

std::shared_ptr<std::byte> ordinaryMemory(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{kPage};
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return {data, [](std::byte* memory) { ::operator delete(memory, kAlignment); }};
}

}  // namespace

std::shared_ptr<MemoryPool::Lease> MemoryPool::take(std::size_t bytes) {
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  Blocks taken;
  {
    const std::lock_guard lock(mutex_);
    // The smallest that is large enough, if it is not much larger.
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      const bool fits = it->size >= size && it->size <= size + size / 4;
      if (fits && (best == kept_.end() || it->size < best->size)) best = it;
    }
    if (best != kept_.end()) {
      keptBytes_ -= best->size;
      taken.splice(taken.end(), kept_, best);
    }
  }
  if (taken.empty()) taken.push_back(allocate(size));
  return std::make_shared<Lease>(weak_from_this(), std::move(taken));
}

MemoryPool::Block MemoryPool::allocate(std::size_t bytes) {
  auto shared = group_->allocateShared(bytes);
  Blocks dropped;
  {
    const std::lock_guard lock(mutex_);
    if (shared != nullptr) hasShared_ = true;
    // What is kept may be in the way, in sizes that are not asked for any more.
    if (shared == nullptr && hasShared_) {
      dropped.swap(kept_);
      keptBytes_ = 0;
    }
  }
  if (!dropped.empty()) {
    dropped.clear();
    shared = group_->allocateShared(bytes);
  }
  return {shared != nullptr ? std::move(shared) : ordinaryMemory(bytes), bytes};
}

void MemoryPool::giveBack(Blocks&& one) noexcept {
  Blocks dropped;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (isClosed_) return;
  keptBytes_ += one.front().size;
  kept_.splice(kept_.begin(), one);
  while (keptBytes_ > kKeptBytes) {
    keptBytes_ -= kept_.back().size;
    dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
  }
}

void MemoryPool::close() {
  Blocks dropped;
  const std::lock_guard lock(mutex_);
  isClosed_ = true;
  keptBytes_ = 0;
  dropped.swap(kept_);
}

std::size_t MemoryPool::keptBytes() {
  const std::lock_guard lock(mutex_);
  return keptBytes_;
}

MemoryPool::Lease::~Lease() {
  if (isDiscarded_) return;
  if (const auto pool = pool_.lock()) pool->giveBack(std::move(block_));
}

}  // namespace smd::tensorflow
