// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What it takes to match a frame with the receive that waits for it, by how many wait. See
// README.md.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "transport/mailbox.h"

namespace {

using smd::transport::Channel;
using smd::transport::FrameHeader;
using smd::transport::Mailbox;
using smd::transport::Receive;
using smd::transport::SendTicket;
using smd::transport::Transport;

constexpr int kPairs = 21;
constexpr std::size_t kFewestFrames = 98'304;  // of one round
constexpr std::uint64_t kBytes = 4;            // of a frame
constexpr int kPeer = 1;

class NoTransport final : public Transport {
 public:
  void send(int, const FrameHeader&, const void*, SendTicket*) override {}
  void expect(int) override {}
  bool poll() override { return false; }
  void close(std::chrono::milliseconds, Ending) override {}
};

double processorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A receive as an application has it: on its own, beside the four bytes that it fills.
struct Posted {
  std::uint32_t value = 0;
  Receive receive;
};

// So many receives posted, then a frame for each of them, in the given order of tags.
class Round {
 public:
  Round(std::size_t count, const std::vector<std::uint64_t>& order) : order_(order) {
    for (std::size_t i = 0; i < count; ++i) {
      posted_.push_back(std::make_unique<Posted>());
      Receive& receive = posted_.back()->receive;
      receive.peer = kPeer;
      receive.tag = i;
      receive.data = reinterpret_cast<std::byte*>(&posted_.back()->value);
      receive.bytes = kBytes;
    }
  }

  // Microseconds for one receive, and for one frame, by the mailbox.
  std::pair<double, double> matched(Mailbox& mailbox) {
    renew();
    const double start = processorSeconds();
    for (const auto& each : posted_) mailbox.post(each->receive);
    const double middle = processorSeconds();
    for (const std::uint64_t tag : order_) {
      const FrameHeader frame = headerOf(tag);
      store(mailbox.frameBegin(kPeer, frame), tag);
      mailbox.frameEnd(kPeer, frame);
    }
    const double end = processorSeconds();
    check();
    return {perFrame(middle - start), perFrame(end - middle)};
  }

  // The floor: microseconds for one frame, if it were known which receive it is for.
  double known() {
    renew();
    const double start = processorSeconds();
    for (const std::uint64_t tag : order_) {
      Receive& receive = posted_[tag]->receive;
      store(receive.data, tag);
      receive.source = kPeer;
      receive.header = headerOf(tag);
      receive.state.store(Receive::State::kDone, std::memory_order_release);
    }
    const double end = processorSeconds();
    check();
    return perFrame(end - start);
  }

 private:
  static FrameHeader headerOf(std::uint64_t tag) {
    FrameHeader frame;
    frame.tag = tag;
    frame.length = kBytes;
    return frame;
  }
  static void store(std::byte* to, std::uint64_t tag) {
    const auto value = static_cast<std::uint32_t>(tag + 1);
    std::memcpy(to, &value, sizeof(value));
  }
  double perFrame(double seconds) const {
    return seconds / static_cast<double>(posted_.size()) * 1e6;
  }
  void renew() {
    for (const auto& each : posted_) {
      each->value = 0;
      each->receive.state.store(Receive::State::kPosted, std::memory_order_relaxed);
    }
  }
  void check() const {
    for (std::size_t i = 0; i < posted_.size(); ++i) {
      if (posted_[i]->value != i + 1 || !posted_[i]->receive.isDone()) {
        std::fprintf(stderr, "receive %zu has %u; expected %zu\n", i, posted_[i]->value, i + 1);
        std::exit(1);
      }
    }
  }

  const std::vector<std::uint64_t>& order_;
  std::vector<std::unique_ptr<Posted>> posted_;
};

std::string summary(std::vector<double> values) {
  std::ranges::sort(values);
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f [%.3f, %.3f]", values[values.size() / 2],
                values[values.size() / 4], values[values.size() * 3 / 4]);
  return text;
}

void measure(const char* name, std::size_t count, const std::vector<std::uint64_t>& order) {
  NoTransport transport;
  Mailbox mailbox(
      2, {[] {}, [](int, const smd::Error&) {}, [](int, const FrameHeader&, std::string_view) {},
          [](int, const smd::transport::Refusal&) {}});
  mailbox.setTransport(kPeer, &transport);
  Round round(count, order);
  std::vector<double> posts;
  std::vector<double> frames;
  std::vector<double> floors;
  const std::size_t repeats = std::max<std::size_t>(1, kFewestFrames / count);
  for (int pair = 0; pair < kPairs + 1; ++pair) {
    double post = 0;
    double frame = 0;
    double floor = 0;
    for (std::size_t i = 0; i < repeats; ++i) {
      const auto [ofPost, ofFrame] = round.matched(mailbox);
      post += ofPost;
      frame += ofFrame;
      floor += round.known();
    }
    if (pair == 0) continue;  // touches the memory
    const auto rounds = static_cast<double>(repeats);
    posts.push_back(post / rounds);
    frames.push_back(frame / rounds);
    floors.push_back(floor / rounds);
  }
  std::printf("| %zu | %s | %s | %s | %s |\n", count, name, summary(posts).c_str(),
              summary(frames).c_str(), summary(floors).c_str());
}

}  // namespace

int main() {
  std::printf("Microseconds, median [quartiles] of %d rounds.\n\n", kPairs);
  std::printf(
      "| posted | frames come | to post | to match and take | floor |\n|---|---|---|---|---|\n");
  for (const std::size_t count : {std::size_t{512}, std::size_t{98'304}}) {
    std::vector<std::uint64_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    measure("in the order of posting", count, order);
    std::ranges::reverse(order);
    measure("in reverse", count, order);
    std::ranges::shuffle(order, std::mt19937_64(1));
    measure("in a random order", count, order);
  }
  return 0;
}
