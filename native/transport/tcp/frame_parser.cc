// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/frame_parser.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace smd::transport::tcp {

std::optional<std::string> FrameParser::consume(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (isInFrame_) {
      const std::size_t part = std::min<std::uint64_t>(bytes.size(), missing_);
      std::memcpy(destination_, bytes.data(), part);
      placed(part);
      bytes = bytes.subspan(part);
      continue;
    }
    if (hasLeft_) {
      return "it sent bytes after its goodbye";
    }
    const std::size_t part = std::min(bytes.size(), headerBytes_.size() - headerFilled_);
    std::memcpy(headerBytes_.data() + headerFilled_, bytes.data(), part);
    headerFilled_ += part;
    bytes = bytes.subspan(part);
    if (headerFilled_ == headerBytes_.size()) {
      headerFilled_ = 0;
      if (auto reason = beginFrame(); reason.has_value()) {
        return reason;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> FrameParser::beginFrame() {
  std::memcpy(&header_, headerBytes_.data(), sizeof(header_));
  switch (checkHeader(header_)) {
    case HeaderVerdict::kGoodbye:
      hasLeft_ = true;
      return std::nullopt;
    case HeaderVerdict::kTooLong:
      return "it announced a frame of " + std::to_string(header_.length) +
             " bytes, expected at most " + std::to_string(longestFrame(header_.channel));
    case HeaderVerdict::kUnknownChannel:
      return "it used channel " + std::to_string(static_cast<int>(header_.channel)) +
             ", which does not exist";
    case HeaderVerdict::kFrame:
      break;
  }
  try {
    destination_ = sink_.frameBegin(from_, header_);
  } catch (const std::bad_alloc&) {
    return "it announced a frame of " + std::to_string(header_.length) +
           " bytes that no receive waits for, and this process has no memory for so many";
  }
  missing_ = header_.length;
  isInFrame_ = true;
  placed(0);
  return std::nullopt;
}

void FrameParser::placed(std::size_t bytes) {
  missing_ -= bytes;
  if (missing_ == 0) {
    isInFrame_ = false;
    destination_ = nullptr;
    sink_.frameEnd(from_, header_);
    return;
  }
  destination_ += bytes;
}

}  // namespace smd::transport::tcp
