// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The TCP transport: the conformance suite, and what only a port that anybody can reach must stand.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "common/file_descriptor.h"
#include "common/network.h"
#include "sanitizers.h"
#include "transport/tcp/factory.h"
#include "transport/tcp/handshakes.h"
#include "transport/tcp/protocol.h"
#include "transport_conformance.h"

namespace smd::transport::tcp {
namespace {

using std::chrono::milliseconds;
using test::frameHeader;
using test::payload;
using test::RecordingSink;

Cookie cookieOf(int seed) {
  Cookie cookie;
  for (std::size_t i = 0; i < cookie.size(); ++i) {
    cookie[i] = static_cast<std::byte>(static_cast<std::size_t>(seed) * 16 + i + 1);
  }
  return cookie;
}

Options onLoopback(int rank, int worldSize) {
  Options options;
  options.rank = rank;
  options.worldSize = worldSize;
  options.interfaces = "127.";
  return options;
}

std::vector<std::unique_ptr<smd::transport::Transport>> makeGroup(
    const std::vector<FrameSink*>& sinks) {
  const int worldSize = static_cast<int>(sinks.size());
  std::vector<std::unique_ptr<TcpTransport>> transports;
  std::vector<std::string> endpoints;
  for (int rank = 0; rank < worldSize; ++rank) {
    transports.push_back(create(onLoopback(rank, worldSize)));
    endpoints.push_back(transports.back()->endpoint());
  }
  std::vector<std::unique_ptr<smd::transport::Transport>> result;
  for (std::size_t rank = 0; rank < sinks.size(); ++rank) {
    transports[rank]->start(endpoints, cookieOf(1), *sinks[rank]);
    result.push_back(std::move(transports[rank]));
  }
  return result;
}

}  // namespace
}  // namespace smd::transport::tcp

namespace smd::transport::test {

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance, conformanceCases("tcp", tcp::makeGroup));

}  // namespace smd::transport::test

namespace smd::transport::tcp {
namespace {

// Rank 0 of two, whose only peer is the test itself, speaking the protocol by hand.
class RawPeer : public ::testing::Test {
 protected:
  static constexpr int kWorldSize = 2;

  void SetUp() override {
    listener_ = FileDescriptor::fromCall([] { return ::socket(AF_INET, SOCK_STREAM, 0); });
    const auto any = SocketAddress::parse("127.0.0.1:0").value();
    ASSERT_EQ(::bind(listener_.get(), any.data(), any.size()), 0);
    ASSERT_EQ(::listen(listener_.get(), 8), 0);
    sockaddr_in bound{};
    socklen_t size = sizeof(bound);
    ASSERT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
    listenerAddress_ = "127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
    transport_ = create(onLoopback(0, kWorldSize));
    transport_->start({transport_->endpoint(), listenerAddress_}, cookieOf(1), sink_);
  }

  void TearDown() override {
    transport_->close(milliseconds(0));
    EXPECT_EQ(sink_.violations(), std::vector<std::string>{});
  }

  Identity peerIdentity() const { return {cookieOf(1), 1, kWorldSize}; }

  FileDescriptor connect() const {
    FileDescriptor socket =
        FileDescriptor::fromCall([] { return ::socket(AF_INET, SOCK_STREAM, 0); });
    const auto address = SocketAddress::parse(transport_->endpoint()).value();
    EXPECT_EQ(::connect(socket.get(), address.data(), address.size()), 0);
    return socket;
  }

  static void write(const FileDescriptor& socket, const void* bytes, std::size_t size) {
    ASSERT_EQ(::send(socket.get(), bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }

  static bool readExactly(const FileDescriptor& socket, void* bytes, std::size_t size) {
    return ::recv(socket.get(), bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }

  // Whether the other side closes `socket` without sending anything more.
  static bool isClosedQuietly(const FileDescriptor& socket) {
    pollfd waiting{socket.get(), POLLIN, 0};
    const auto patience = std::chrono::duration_cast<milliseconds>(test::kPatience);
    if (::poll(&waiting, 1, static_cast<int>(patience.count())) != 1) {
      return false;
    }
    char byte = 0;
    const ssize_t got = ::recv(socket.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  // A connection on which frames of rank 1 may be written.
  FileDescriptor connectAsPeer() const {
    FileDescriptor socket = connect();
    const auto hello = makeHello(peerIdentity(), 0);
    write(socket, hello.data(), hello.size());
    std::array<std::byte, kReplyBytes> reply;
    EXPECT_TRUE(readExactly(socket, reply.data(), reply.size()));
    EXPECT_TRUE(checkReply(reply, peerIdentity(), 0));
    return socket;
  }

  bool wait(const std::function<bool()>& isTrue) const {
    const auto deadline = std::chrono::steady_clock::now() + test::kPatience;
    while (!isTrue()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  // A well-behaved peer is still served, and nothing was reported.
  void expectUndisturbed() {
    EXPECT_FALSE(sink_.failure(1).has_value());
    const FileDescriptor socket = connectAsPeer();
    const FrameHeader header = frameHeader(7, 3);
    write(socket, &header, sizeof(header));
    const auto bytes = payload(1, 0, 7, 3);
    write(socket, bytes.data(), bytes.size());
    ASSERT_TRUE(wait([&] { return sink_.count(1) == 1; }));
    test::expectFrame(sink_.frame(1, 0), 1, 0, 7, 3);
  }

  FileDescriptor listener_;
  std::string listenerAddress_;
  RecordingSink sink_;
  std::unique_ptr<TcpTransport> transport_;
};

TEST_F(RawPeer, GarbageIsClosedQuietly) {
  const FileDescriptor socket = connect();
  const std::vector<char> garbage(4096, 'G');
  write(socket, garbage.data(), garbage.size());
  EXPECT_TRUE(isClosedQuietly(socket));
  EXPECT_TRUE(wait([&] { return transport_->rejectedConnections() == 1; }));
  expectUndisturbed();
}

TEST_F(RawPeer, WrongCookieIsClosedQuietly) {
  const FileDescriptor socket = connect();
  const auto hello = makeHello({cookieOf(2), 1, kWorldSize}, 0);
  write(socket, hello.data(), hello.size());
  EXPECT_TRUE(isClosedQuietly(socket));
  EXPECT_TRUE(wait([&] { return transport_->rejectedConnections() == 1; }));
  expectUndisturbed();
}

TEST_F(RawPeer, TruncatedHelloIsForgotten) {
  {
    const FileDescriptor socket = connect();
    const auto hello = makeHello(peerIdentity(), 0);
    write(socket, hello.data(), hello.size() - 1);
  }
  EXPECT_TRUE(wait([&] { return transport_->rejectedConnections() == 1; }));
  expectUndisturbed();
}

TEST_F(RawPeer, HelloMayArriveByteByByte) {
  const FileDescriptor socket = connect();
  const auto hello = makeHello(peerIdentity(), 0);
  for (const std::byte each : hello) {
    write(socket, &each, 1);
  }
  std::array<std::byte, kReplyBytes> reply;
  ASSERT_TRUE(readExactly(socket, reply.data(), reply.size()));
  EXPECT_TRUE(checkReply(reply, peerIdentity(), 0));
}

TEST_F(RawPeer, SecondConnectionOfARankIsClosedQuietly) {
  const FileDescriptor first = connectAsPeer();
  const FileDescriptor second = connect();
  const auto hello = makeHello(peerIdentity(), 0);
  write(second, hello.data(), hello.size());
  EXPECT_TRUE(isClosedQuietly(second));
  const FrameHeader header = frameHeader(1, 0);
  write(first, &header, sizeof(header));
  EXPECT_TRUE(wait([&] { return sink_.count(1) == 1; }));
}

TEST_F(RawPeer, StrangersThatSayNothingAreBoundedInNumber) {
  std::vector<FileDescriptor> strangers;
  constexpr std::size_t kTooMany = 20;
  for (std::size_t i = 0; i < Handshakes::kStrangers + kWorldSize + kTooMany; ++i) {
    strangers.push_back(connect());
  }
  EXPECT_TRUE(wait([&] { return transport_->rejectedConnections() >= kTooMany; }));
  EXPECT_TRUE(isClosedQuietly(strangers.front()));  // the oldest
  expectUndisturbed();
}

TEST_F(RawPeer, StrangersThatSayNothingAreBoundedInTime) {
  const FileDescriptor slow = connect();
  const auto hello = makeHello(peerIdentity(), 0);
  write(slow, hello.data(), 10);
  EXPECT_TRUE(isClosedQuietly(slow));
  EXPECT_TRUE(wait([&] { return transport_->rejectedConnections() == 1; }));
  expectUndisturbed();
}

TEST_F(RawPeer, HalfAFrameThenEndFailsTheLink) {
  {
    const FileDescriptor socket = connectAsPeer();
    const FrameHeader header = frameHeader(1, 100);
    write(socket, &header, sizeof(header));
    write(socket, "half", 4);
  }
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find(listenerAddress_ + " closed the connection"), std::string::npos)
      << *sink_.failure(1);
  EXPECT_EQ(sink_.count(1), 0U);
}

TEST_F(RawPeer, FrameOfImpossibleLengthFailsTheLinkBeforeMemoryIsAskedFor) {
  const FileDescriptor socket = connectAsPeer();
  const FrameHeader header = frameHeader(1, kMaxFrameBytes + 1);
  write(socket, &header, sizeof(header));
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find("broke the protocol"), std::string::npos) << *sink_.failure(1);
  EXPECT_TRUE(isClosedQuietly(socket));
}

TEST_F(RawPeer, UnknownChannelFailsTheLink) {
  const FileDescriptor socket = connectAsPeer();
  const FrameHeader header = frameHeader(1, 0, static_cast<Channel>(77));
  write(socket, &header, sizeof(header));
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find("channel 77"), std::string::npos) << *sink_.failure(1);
}

TEST_F(RawPeer, GoodbyeIsToldApartFromDeath) {
  {
    const FileDescriptor socket = connectAsPeer();
    const FrameHeader goodbye = makeGoodbye();
    write(socket, &goodbye, sizeof(goodbye));
  }
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find("left"), std::string::npos) << *sink_.failure(1);
}

TEST_F(RawPeer, DeathIsNoticedOnAConnectionThatOnlySends) {
  transport_->expect(1);
  const FileDescriptor accepted =
      FileDescriptor::fromCall([&] { return ::accept(listener_.get(), nullptr, nullptr); });
  std::array<std::byte, kHelloBytes> hello;
  ASSERT_TRUE(readExactly(accepted, hello.data(), hello.size()));
  ASSERT_EQ(checkHello(hello, peerIdentity()).verdict, HelloVerdict::kAccepted);
  const auto reply = makeReply(peerIdentity(), 0);
  write(accepted, reply.data(), reply.size());
  ::shutdown(accepted.get(), SHUT_RDWR);
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find("closed the connection"), std::string::npos);
}

TEST_F(RawPeer, RefusedConnectionFailsTheLinkAndTheTicket) {
  listener_.reset();
  SendTicket ticket;
  transport_->send(1, frameHeader(1, 0), nullptr, &ticket);
  ASSERT_TRUE(wait([&] { return sink_.failure(1).has_value(); }));
  EXPECT_NE(sink_.failure(1)->find(listenerAddress_), std::string::npos) << *sink_.failure(1);
  EXPECT_NE(sink_.failure(1)->find("refused"), std::string::npos) << *sink_.failure(1);
  EXPECT_EQ(ticket.state(), SendTicket::State::kFailed);
}

TEST_F(RawPeer, PeerThatDoesNotReadCannotKeepTicketsPendingBeyondClose) {
  constexpr std::size_t kLength = std::size_t{64} << 20;
  const auto bytes = std::make_unique<std::byte[]>(kLength);
  SendTicket ticket;
  transport_->send(1, frameHeader(1, kLength), bytes.get(), &ticket);
  const FileDescriptor accepted =
      FileDescriptor::fromCall([&] { return ::accept(listener_.get(), nullptr, nullptr); });
  std::array<std::byte, kHelloBytes> hello;
  ASSERT_TRUE(readExactly(accepted, hello.data(), hello.size()));
  const auto reply = makeReply(peerIdentity(), 0);
  write(accepted, reply.data(), reply.size());
  FrameHeader header;
  ASSERT_TRUE(readExactly(accepted, &header, sizeof(header)));  // it has begun
  EXPECT_EQ(ticket.state(), SendTicket::State::kPending);
  transport_->close(milliseconds(20));
  EXPECT_EQ(ticket.state(), SendTicket::State::kFailed);
}

TEST_F(RawPeer, ForkedChildHoldsNoSocketAndItsCopyDoesNothing) {
  const FileDescriptor socket = connectAsPeer();
  int toChild[2];
  ASSERT_EQ(::pipe(toChild), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    SendTicket ticket;
    transport_->send(1, frameHeader(1, 0), nullptr, &ticket);
    const bool isInert = ticket.state() == SendTicket::State::kFailed && !transport_->poll();
    transport_.reset();
    // Stays until the parent is through: the connection must end without the child's help.
    ::close(toChild[1]);
    char byte = 0;
    static_cast<void>(!::read(toChild[0], &byte, 1));
    ::_exit(isInert ? 0 : 1);
  }
  transport_->close(milliseconds(0));
  std::array<std::byte, kReplyBytes> farewell;
  EXPECT_TRUE(readExactly(socket, farewell.data(), farewell.size()));
  EXPECT_TRUE(checkFarewell(farewell, peerIdentity(), 0));
  EXPECT_TRUE(isClosedQuietly(socket));
  ::close(toChild[0]);
  ::close(toChild[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(TcpTransport, DeathOfAProcessIsNoticedByItsPeerThoughItsForkedChildLives) {
  if (!smd::test::kCanStartThreadsInForkedChildren) {
    GTEST_SKIP() << smd::test::kNoThreadsInForkedChildren;
  }
  RecordingSink sink;
  auto transport = create(onLoopback(0, 2));
  int fromPeer[2];
  int toPeer[2];
  ASSERT_EQ(::pipe(fromPeer), 0);
  ASSERT_EQ(::pipe(toPeer), 0);
  const std::string mine = transport->endpoint();
  const pid_t peer = ::fork();
  ASSERT_GE(peer, 0);
  if (peer == 0) {
    auto other = create(onLoopback(1, 2));
    RecordingSink otherSink;
    std::string endpoint = other->endpoint();
    endpoint.resize(64, '\0');
    static_cast<void>(!::write(fromPeer[1], endpoint.data(), endpoint.size()));
    other->start({mine, other->endpoint()}, cookieOf(1), otherSink);
    other->send(0, frameHeader(0, 0), nullptr, nullptr);
    while (otherSink.count(0) == 0) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (::fork() == 0) {  // like a DataLoader worker: outlives the rank, holding what it inherited
      ::close(toPeer[1]);
      char byte = 0;
      static_cast<void>(!::read(toPeer[0], &byte, 1));
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
  }
  ::close(fromPeer[1]);  // a peer that fails to start ends the next read
  std::string endpoint(64, '\0');
  ASSERT_EQ(::read(fromPeer[0], endpoint.data(), endpoint.size()), 64);
  endpoint.resize(endpoint.find('\0'));
  transport->start({mine, endpoint}, cookieOf(1), sink);
  transport->send(1, frameHeader(0, 0), nullptr, nullptr);
  const auto deadline = std::chrono::steady_clock::now() + test::kPatience;
  while (!sink.failure(1).has_value() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(sink.count(1), 1U);
  ASSERT_TRUE(sink.failure(1).has_value());
  EXPECT_NE(sink.failure(1)->find("closed the connection"), std::string::npos);
  int status = 0;
  ::waitpid(peer, &status, 0);
  for (const int fd : {fromPeer[0], toPeer[0], toPeer[1]}) {
    ::close(fd);  // which ends the grandchild
  }
  transport->close(milliseconds(0));
}

TEST(TcpTransport, EndpointsThatCannotReachOneAnotherAreRefused) {
  RecordingSink sink;
  const auto transport = create(onLoopback(0, 2));
  try {
    transport->start({transport->endpoint(), "10.1.0.2:4000"}, cookieOf(1), sink);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
    EXPECT_NE(std::string(error.what()).find("Set SMDDP_INTERFACE"), std::string::npos);
  }
}

TEST(TcpTransport, RanksThatAreNoPeersAreRefused) {
  RecordingSink sink;
  const auto transport = create(onLoopback(0, 1));
  EXPECT_THROW(transport->expect(0), Error);  // before start()
  transport->start({transport->endpoint()}, cookieOf(1), sink);
  EXPECT_THROW(transport->send(0, frameHeader(0, 0), nullptr, nullptr), Error);
  EXPECT_THROW(transport->send(1, frameHeader(0, 0), nullptr, nullptr), Error);
  EXPECT_THROW(transport->expect(-1), Error);
}

}  // namespace
}  // namespace smd::transport::tcp
