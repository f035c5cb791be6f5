// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/frame_parser.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "transport/flow.h"

namespace smd::transport {
namespace {

constexpr auto kGoodbyeMark = static_cast<Channel>(0xFF);
// More than the longest error text that the engine makes.
constexpr std::uint64_t kMaxControlBytes = std::uint64_t{1} << 20;

Refusal refusalOf(Refusal::Reason reason, const FrameHeader& header = {}) {
  return {reason, header};
}

}  // namespace

std::string Refusal::text() const {
  switch (reason) {
    case Reason::kTooLong:
      return "it announced a frame of " + std::to_string(header.length) +
             " bytes, expected at most " + std::to_string(longestFrame(header.channel));
    case Reason::kUnknownChannel:
      return "it used channel " + std::to_string(static_cast<int>(header.channel)) +
             ", which does not exist";
    case Reason::kBadTag:
      return "it used tag " + std::to_string(header.tag) + " for a frame of " +
             std::to_string(header.length) + " bytes on channel " +
             std::to_string(static_cast<int>(header.channel)) + ", which cannot have it";
    case Reason::kUnknownKind:
      return "it sent a frame of kind " + std::to_string(static_cast<int>(header.kind)) + " with " +
             std::to_string(header.length) + " bytes on channel " +
             std::to_string(static_cast<int>(header.channel)) + ", which cannot be";
    case Reason::kNotCleared:
      return "it sent " + std::to_string(header.length) +
             " bytes as if they had been announced and cleared, which they were not";
    case Reason::kBeyondWindow:
      if (header.kind == FrameKind::kAnnouncement) {
        return "it announced a message of " + std::to_string(header.amount) +
               " bytes, beyond those that it may announce before they are asked for";
      }
      return "it sent " + std::to_string(header.length) +
             " bytes at once, beyond what it may send before that is taken";
    case Reason::kTooManyAnnounced:
      return "it announced " + std::to_string(header.amount) + " bytes, and " +
             std::to_string(Windows::kMostAnnounced) +
             " frames that were announced wait here for receives already";
    case Reason::kAfterGoodbye:
      return "it sent bytes after its goodbye";
    case Reason::kOverrun:
      return "it wrote more into a ring than the ring holds";
    case Reason::kNoMemory:
      break;
  }
  return "it sent a frame of " + std::to_string(header.length) +
         " bytes, and this process has no memory for so many";
}

std::string Refusal::wanted(const std::string& peer) const {
  const std::string operation = header.channel == Channel::kMessage   ? "a message"
                                : header.channel == Channel::kControl ? "news of itself"
                                                                      : describe(header.signature);
  switch (header.kind) {
    case FrameKind::kWhole:
    case FrameKind::kPayload:
      if (header.length == 0) break;
      return "for the " + std::to_string(header.length) + " bytes that " + peer + " sent in " +
             operation;
    case FrameKind::kAnnouncement:
      return "to note that " + peer + " has announced " + std::to_string(header.amount) +
             " bytes in " + operation;
    case FrameKind::kClearance:
    case FrameKind::kReturn:
      return "to send " + peer + " what it asks for";
  }
  return "to note what " + peer + " sent in " + operation;
}

std::uint64_t longestFrame(Channel channel) {
  return channel == Channel::kControl ? kMaxControlBytes : kMaxFrameBytes;
}

FrameHeader makeGoodbye() {
  FrameHeader header;
  header.channel = kGoodbyeMark;
  return header;
}

bool isGoodbye(const FrameHeader& header) {
  return header.channel == kGoodbyeMark && header.length == 0;
}

std::optional<Refusal> checkHeader(const FrameHeader& header) {
  if (header.channel > Channel::kMessage) {
    return refusalOf(Refusal::Reason::kUnknownChannel, header);
  }
  const bool isWhole = header.kind == FrameKind::kWhole;
  const bool hasPayload = isWhole || header.kind == FrameKind::kPayload;
  if (header.kind > FrameKind::kReturn || (!isWhole && header.channel == Channel::kControl) ||
      (!hasPayload && header.length != 0)) {
    return refusalOf(Refusal::Reason::kUnknownKind, header);
  }
  const bool isAnnouncement = header.kind == FrameKind::kAnnouncement;
  const std::uint64_t length = isAnnouncement ? header.amount : header.length;
  if (length > longestFrame(header.channel)) {
    return refusalOf(Refusal::Reason::kTooLong, header);
  }
  const bool isTagGood = header.channel == Channel::kControl   ? header.tag < kNumControlTags
                         : header.channel == Channel::kMessage ? header.tag <= length
                                                               : true;  // the user's, or a step
  if (!isTagGood) return refusalOf(Refusal::Reason::kBadTag, header);
  return std::nullopt;
}

std::optional<Refusal> FrameParser::consume(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::size_t part = 0;
    std::optional<Refusal> refusal;
    switch (state_) {
      case State::kInPayload:
        part = std::min<std::uint64_t>(bytes.size(), missing_);
        if (destination_ != nullptr) std::memcpy(destination_, bytes.data(), part);
        refusal = placed(part);
        break;
      case State::kInHeader:
        part = std::min(bytes.size(), headerBytes_.size() - headerFilled_);
        std::memcpy(headerBytes_.data() + headerFilled_, bytes.data(), part);
        headerFilled_ += part;
        if (headerFilled_ == headerBytes_.size()) refusal = begin();
        break;
      case State::kLeft:
        return refused(refusalOf(Refusal::Reason::kAfterGoodbye));
      case State::kRefused:
        return refusal_;
    }
    if (refusal.has_value()) return refusal;
    bytes = bytes.subspan(part);
  }
  return std::nullopt;
}

std::optional<Refusal> FrameParser::begin() {
  headerFilled_ = 0;
  std::memcpy(&header_, headerBytes_.data(), sizeof(header_));
  if (isGoodbye(header_)) {
    state_ = State::kLeft;
    return std::nullopt;
  }
  if (const auto refusal = checkHeader(header_); refusal.has_value()) return refused(*refusal);
  // Whatever is thrown: this frame was not begun, so what follows is not its payload.
  state_ = State::kRefused;
  try {
    destination_ = sink_.frameBegin(from_, header_);
  } catch (const std::bad_alloc&) {
    return refused(refusalOf(Refusal::Reason::kNoMemory, header_));
  } catch (const Refusal& refusal) {
    return refused(refusal);
  }
  state_ = State::kInPayload;
  missing_ = header_.length;
  return missing_ == 0 ? commit() : std::nullopt;
}

std::optional<Refusal> FrameParser::placed(std::size_t bytes) {
  if (bytes == 0) return std::nullopt;
  missing_ -= bytes;
  if (destination_ != nullptr) destination_ += bytes;
  return missing_ == 0 ? commit() : std::nullopt;
}

std::optional<Refusal> FrameParser::commit() {
  destination_ = nullptr;
  state_ = State::kRefused;  // if it throws: frames behind one that got lost must not be taken
  try {
    sink_.frameEnd(from_, header_);
  } catch (const std::bad_alloc&) {
    return refused(refusalOf(Refusal::Reason::kNoMemory, header_));
  }
  state_ = State::kInHeader;
  return std::nullopt;
}

std::optional<Refusal> FrameParser::refused(const Refusal& refusal) {
  refuse(refusal);
  return refusal_;
}

void FrameParser::refuse(const Refusal& refusal) {
  cancel();
  state_ = State::kRefused;
  refusal_ = refusal;
}

void FrameParser::cancel() {
  const bool hasBegun = state_ == State::kInPayload;
  if (state_ != State::kRefused) refusal_ = refusalOf(Refusal::Reason::kAfterGoodbye);
  state_ = State::kRefused;
  destination_ = nullptr;
  missing_ = 0;
  if (hasBegun) sink_.frameCancelled(from_);
}

}  // namespace smd::transport
