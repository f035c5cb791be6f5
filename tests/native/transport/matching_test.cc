// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Queues by key, against a list that is walked.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <random>
#include <vector>

#include "transport/matching.h"

namespace smd::transport {
namespace {

struct Element {
  MatchKey key;
  QueuePlace<Element> place;
};
using Queues = KeyedQueues<Element, &Element::place>;

Element* firstOf(const std::list<Element*>& all, const MatchKey& key) {
  const auto found = std::ranges::find_if(all, [&](Element* each) { return each->key == key; });
  return found == all.end() ? nullptr : *found;
}

TEST(KeyedQueuesTest, AnEmptyOneHasNoFirst) {
  Queues queues;
  EXPECT_TRUE(queues.isEmpty());
  EXPECT_EQ(queues.first({}), nullptr);
}

TEST(KeyedQueuesTest, ItIsAsAListThatIsWalked) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](std::size_t limit) { return random() % limit; };
    // Few keys make long queues, many make the table grow.
    const std::uint64_t numTags = seed % 2 == 0 ? 3 : 500;
    std::deque<Element> elements(600);
    std::vector<Element*> outside;
    for (Element& each : elements) outside.push_back(&each);
    std::list<Element*> all;
    Queues queues;
    queues.reserve();
    for (int step = 0; step < 4000; ++step) {
      if (!outside.empty() && below(5) < 3) {
        Element* const element = outside.back();
        outside.pop_back();
        element->key = {below(numTags) << below(3) * 12, static_cast<int>(below(3)) - 1,
                        static_cast<Channel>(below(2))};
        queues.append(*element, element->key);
        all.push_back(element);
      } else if (!all.empty()) {
        auto gone = all.begin();
        std::advance(gone, below(all.size()));
        // As often the first of its key as any.
        if (below(2) == 0) gone = std::ranges::find(all, firstOf(all, (*gone)->key));
        queues.remove(**gone);
        EXPECT_FALSE((*gone)->place.isQueued);
        outside.push_back(*gone);
        all.erase(gone);
      }
      const MatchKey key =
          all.empty() || below(4) == 0
              ? MatchKey{below(numTags), 0}
              : (*std::next(all.begin(), static_cast<std::ptrdiff_t>(below(all.size()))))->key;
      ASSERT_EQ(queues.first(key), firstOf(all, key)) << "seed " << seed << ", step " << step;
      ASSERT_EQ(queues.isEmpty(), all.empty());
    }
  }
}

}  // namespace
}  // namespace smd::transport
