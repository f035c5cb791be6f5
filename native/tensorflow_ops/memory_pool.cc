// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/memory_pool.h"

#include <exception>
#include <iterator>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include "common/signals.h"

namespace smd::tensorflow_ops {
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
  Blocks taken, expired;  // freed without the lock
  if (!isForkedChild(generation_)) {
    const ForkGuard lock;
    // The smallest that is large enough, if it is not much larger.
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      const bool fits = it->size >= size && it->size <= size + size / 4;
      if (fits && (best == kept_.end() || it->size < best->size)) best = it;
    }
    if (best != kept_.end()) taken.splice(taken.end(), kept_, best);
    expire(Clock::now(), expired);
  }
  expired.clear();
  if (taken.empty()) taken.push_back(allocate(size));
  return std::make_shared<Lease>(weak_from_this(), std::move(taken));
}

MemoryPool::Block MemoryPool::allocate(std::size_t bytes) {
  auto shared = group_->allocateShared(bytes);
  Blocks dropped;
  {
    const ForkGuard lock;
    if (shared != nullptr) hasShared_ = true;
    // What is kept may be in the way, in sizes that are not asked for any more.
    if (shared == nullptr && hasShared_) dropped.swap(kept_);
  }
  if (!dropped.empty()) {
    dropped.clear();
    shared = group_->allocateShared(bytes);
  }
  return {shared != nullptr ? std::move(shared) : ordinaryMemory(bytes), bytes};
}

void MemoryPool::giveBack(Blocks&& one) noexcept {
  if (isForkedChild(generation_)) return;
  Blocks expired;  // freed without the lock
  bool needsThread = false;
  {
    const ForkGuard lock;
    if (isClosed_) return;
    const TimePoint now = Clock::now();
    one.front().since = now;
    kept_.splice(kept_.begin(), one);
    expire(now, expired);
    needsThread = !std::exchange(hasThread_, true);
  }
  if (needsThread) expireLater(weak_from_this());
}

// Nobody else may ever come by again: the last step has been made, and the process goes on.
void MemoryPool::expireLater(const std::weak_ptr<MemoryPool>& pool) noexcept {
  try {
    const NoSignals meanwhile;
    std::thread([pool] {
      nanoseconds pause{0};
      while (true) {
        std::this_thread::sleep_for(pause);
        const auto self = pool.lock();
        const auto next = self == nullptr ? std::nullopt : self->expireNow();
        if (!next) return;
        pause = *next;
      }
    }).detach();
  } catch (const std::exception&) {  // no room for a thread: operations still give back
    if (const auto self = pool.lock()) {
      const ForkGuard lock;
      self->hasThread_ = false;
    }
  }
}

// Until when nothing else is to be given back; nothing: there is no more, and the thread ends.
std::optional<nanoseconds> MemoryPool::expireNow() noexcept {
  Blocks expired;  // freed without the lock
  const ForkGuard lock;
  const TimePoint now = Clock::now();
  expire(now, expired);
  if (!kept_.empty()) return kept_.back().since + idleTime_ - now;
  hasThread_ = false;
  return std::nullopt;
}

// Caller holds the lock.
void MemoryPool::expire(TimePoint now, Blocks& expired) noexcept {
  while (!kept_.empty() && now - kept_.back().since >= idleTime_) {
    expired.splice(expired.begin(), kept_, std::prev(kept_.end()));
  }
}

void MemoryPool::close() {
  Blocks dropped;
  const ForkGuard lock;
  isClosed_ = true;
  dropped.swap(kept_);
}

std::size_t MemoryPool::keptBytes() const {
  const ForkGuard lock;
  return std::accumulate(kept_.begin(), kept_.end(), std::size_t{0},
                         [](std::size_t sum, const Block& each) { return sum + each.size; });
}

MemoryPool::Lease::~Lease() {
  if (isDiscarded_) return;
  if (const auto pool = pool_.lock()) pool->giveBack(std::move(block_));
}

}  // namespace smd::tensorflow_ops
