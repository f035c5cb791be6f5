// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a connection, in the clear and inside TLS: peers take turns.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "transport/tcp/receiver.h"
#include "transport/tcp/tls.h"

namespace smd::transport::tcp {
namespace {

class CountingSink final : public FrameSink {
 public:
  std::byte* frameBegin(Stream, const FrameHeader&) override { return nullptr; }
  void frameEnd(Stream, const FrameHeader&) override { ++count; }
  void frameCancelled(Stream) noexcept override {}
  void frameRefused(int, const Refusal&) noexcept override {}
  void sendCompleted(int) override {}
  void linkFailed(int, const Error&) override {}

  std::size_t count = 0;
};

// The files of one self-signed certificate; empty where there is no openssl command.
TlsFiles makeCertificate() {
  static const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("smd-receiver-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string certificate = folder / "rank.pem";
  const std::string key = folder / "rank.key";
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
      " -subj /CN=rank -keyout " +
      key + " -out " + certificate + " 2>/dev/null";
  if (std::system(command.c_str()) != 0) return {};
  return {certificate, key, certificate};
}

class TakingTurns : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      const TlsFiles files = makeCertificate();
      if (files.certificate.empty()) GTEST_SKIP() << "no openssl command to make certificates with";
      context_ = std::make_unique<TlsContext>(files);
      std::filesystem::remove_all(std::filesystem::path(files.certificate).parent_path());
    }
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    opener_ = Connection(FileDescriptor(ends[0]), context_.get(), TlsRole::kOpener);
    acceptor_ = Connection(FileDescriptor(ends[1]), context_.get(), TlsRole::kAcceptor);
    for (int i = 0; i < 10; ++i) {
      opener_.secure();
      acceptor_.secure();
    }
    ASSERT_EQ(opener_.secure(), TlsSession::Step::kDone);
    ASSERT_EQ(acceptor_.secure(), TlsSession::Step::kDone);
  }

  std::unique_ptr<TlsContext> context_;
  Connection opener_, acceptor_;
};

// (In 2.0.0 before its release TLS read on as long as OpenSSL held anything: a peer that sends
// without end was the only one served.)
TEST_P(TakingTurns, ATurnEndsWithItsBudget) {
  const std::vector<FrameHeader> frames(1000);
  const auto bytes = std::as_bytes(std::span(frames));
  ASSERT_TRUE(opener_.writeAll(bytes));
  CountingSink sink;
  Receiver receiver(std::move(acceptor_), 1, "127.0.0.1:1", {}, sink);
  std::vector<std::byte> scratch(1024);
  constexpr std::size_t kBudget = 4096;
  std::size_t total = 0;
  int turns = 0;
  while (total < bytes.size() && turns < 1000) {
    const Receiver::Result result = receiver.receive(kBudget, scratch);
    EXPECT_LT(result.bytes, kBudget + scratch.size());
    total += result.bytes;
    ++turns;
    if (GetParam() && total < bytes.size()) {
      EXPECT_TRUE(result.hasMore) << "no poll would tell";
    }
  }
  EXPECT_EQ(sink.count, frames.size());
  EXPECT_FALSE(receiver.receive(kBudget, scratch).hasMore);
}

TEST_P(TakingTurns, APayloadWithoutAPlaceIsPassedOver) {
  constexpr std::size_t kPayload = 20'000;
  std::vector<std::byte> bytes(2 * (sizeof(FrameHeader) + kPayload));
  FrameHeader header;
  header.length = kPayload;
  for (const std::size_t at : {std::size_t{0}, bytes.size() / 2}) {
    std::memcpy(bytes.data() + at, &header, sizeof(header));
  }
  ASSERT_TRUE(opener_.writeAll(bytes));
  CountingSink sink;  // has none
  Receiver receiver(std::move(acceptor_), 1, "127.0.0.1:1", {}, sink);
  std::vector<std::byte> scratch(1024);
  std::size_t total = 0;
  for (int turn = 0; total < bytes.size() && turn < 1000; ++turn) {
    const Receiver::Result result = receiver.receive(4096, scratch);
    ASSERT_FALSE(result.end.has_value() || result.refusal.has_value());
    total += result.bytes;
  }
  EXPECT_EQ(sink.count, 2u);
}

INSTANTIATE_TEST_SUITE_P(Connections, TakingTurns, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace smd::transport::tcp
