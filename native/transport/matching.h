// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Queues by key, many of them, with elements that bring the memory for their own place. To append,
// to find the first of a key and to remove any element takes the same time however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace smd::transport {

// What a receive and a frame must have in common.
struct MatchKey {
  std::uint64_t tag = 0;
  int peer = 0;
  Channel channel = Channel::kPointToPoint;

  bool operator==(const MatchKey&) const = default;
};

inline std::size_t hashOf(const MatchKey& key) {
  // Tags count up by one or by a power of two: the product spreads both over the upper bits.
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  const std::uint64_t who = std::uint64_t{static_cast<std::uint32_t>(key.peer)} << 8 |
                            static_cast<std::uint64_t>(key.channel);
  const std::uint64_t mixed = (key.tag ^ who * kOdd) * kOdd;
  return static_cast<std::size_t>(mixed ^ mixed >> 32);
}

struct MatchHash {
  std::size_t operator()(const MatchKey& key) const { return hashOf(key); }
};

// The place of an element in one set of queues.
template <class T>
struct QueuePlace {
  MatchKey key;
  bool isQueued = false;
  T* younger = nullptr;   // of the same key
  T* older = nullptr;     // of the same key; null for its first
  T* youngest = nullptr;  // in the first of a key
  T* nextKey = nullptr;   // in the first of a key: the first of another one, in the same bucket
};

// Not thread-safe. Elements must stay where they are while they are in a queue.
template <class T, QueuePlace<T> T::* kPlace>
class KeyedQueues {
 public:
  bool isEmpty() const { return numKeys_ == 0; }

  // The oldest of this key; null if there is none.
  T* first(const MatchKey& key) const {
    if (numKeys_ == 0) return nullptr;
    T* element = buckets_[bucketOf(key)];
    while (element != nullptr && (element->*kPlace).key != key) {
      element = (element->*kPlace).nextKey;
    }
    return element;
  }

  // Before the first append(), which never fails then. Throws std::bad_alloc.
  void reserve() {
    if (buckets_.empty()) buckets_.resize(kFewest, nullptr);
  }

  void append(T& element, const MatchKey& key) {
    QueuePlace<T>& place = element.*kPlace;
    place = {.key = key, .isQueued = true};
    if (T* oldest = first(key); oldest != nullptr) {
      place.older = (oldest->*kPlace).youngest;
      (place.older->*kPlace).younger = &element;
      (oldest->*kPlace).youngest = &element;
      return;
    }
    place.youngest = &element;
    if (numKeys_ >= buckets_.size()) grow();
    putInFront(element);
    ++numKeys_;
  }

  void remove(T& element) {
    QueuePlace<T>& place = element.*kPlace;
    if (place.older == nullptr) {
      removeFirst(element);
    } else {
      (place.older->*kPlace).younger = place.younger;
      if (place.younger != nullptr) {
        (place.younger->*kPlace).older = place.older;
      } else {
        (first(place.key)->*kPlace).youngest = place.older;
      }
    }
    place.isQueued = false;
  }

 private:
  static constexpr std::size_t kFewest = 64;

  std::size_t bucketOf(const MatchKey& key) const { return hashOf(key) & (buckets_.size() - 1); }

  void putInFront(T& element) {
    T*& bucket = buckets_[bucketOf((element.*kPlace).key)];
    (element.*kPlace).nextKey = std::exchange(bucket, &element);
  }

  // The next of its key takes its place, if there is one.
  void removeFirst(T& element) {
    QueuePlace<T>& place = element.*kPlace;
    T** link = &buckets_[bucketOf(place.key)];
    while (*link != &element) link = &((*link)->*kPlace).nextKey;
    T* const next = place.younger;
    if (next == nullptr) {
      *link = place.nextKey;
      --numKeys_;
      return;
    }
    (next->*kPlace).older = nullptr;
    (next->*kPlace).youngest = place.youngest;
    (next->*kPlace).nextKey = place.nextKey;
    *link = next;
  }

  void grow() {
    std::vector<T*> old;
    try {
      old.resize(2 * buckets_.size(), nullptr);
    } catch (const std::bad_alloc&) {
      return;  // it is only slower then
    }
    std::swap(old, buckets_);
    for (T* element : old) {
      while (element != nullptr) {
        T* const next = (element->*kPlace).nextKey;
        putInFront(*element);
        element = next;
      }
    }
  }

  std::vector<T*> buckets_;  // a power of two of them
  std::size_t numKeys_ = 0;
};

}  // namespace smd::transport
