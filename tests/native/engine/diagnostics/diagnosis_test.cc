// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What keeps an operation from completing: which error it ends with, and whether the group does.
#include "engine/diagnostics/diagnosis.h"

#include <gtest/gtest.h>

#include "support/lone_rank.h"

namespace smd::engine::test {
namespace {

constexpr nanoseconds kTooLong = std::chrono::minutes(2);

// A rank without reports, which would go to stderr.
struct DiagnosedRank : LoneRank {
  using LoneRank::LoneRank;
  Diagnosis diagnosis{peers, positions, failure, nanoseconds(0), [] { return std::uint64_t{0}; }};

  std::string textOf(Work& work) {
    const std::optional<Error> error = diagnosis.diagnose(work);
    return error ? error->what() : "";
  }
};

TEST(Diagnosis, NothingIsWrongWhileThereIsTime) {
  DiagnosedRank rank(0, 2);
  Awaited awaited;
  awaited.missing = {1};
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  EXPECT_FALSE(rank.diagnosis.diagnose(*work).has_value());
  EXPECT_FALSE(rank.failure.hasEnded());
}

TEST(Diagnosis, ADeadlineEndsTheGroupAndNamesWhoIsMissing) {
  DiagnosedRank rank(0, 3);
  Awaited awaited;
  awaited.missing = {2};
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 4, kTooLong);
  const std::optional<Error> error = rank.diagnosis.diagnose(*work);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
  const std::string text = error->what();
  EXPECT_TRUE(text.starts_with("rank 0 (host host-0")) << text;
  EXPECT_NE(text.find("has waited 120.0 s for rank 2"), text.npos) << text;
  EXPECT_NE(text.find("the other 2 ranks arrived"), text.npos) << text;
  EXPECT_TRUE(rank.failure.hasEnded());
  ASSERT_EQ(rank.wires->told.size(), 1u);
  EXPECT_EQ(rank.wires->told[0].header.signature, work->signature());
}

TEST(Diagnosis, AReceiveThatNobodyAnswersHarmsNobodyElse) {
  DiagnosedRank rank(0, 2);
  Awaited awaited;
  awaited.missing = {1};
  awaited.mayAbandon = true;
  const auto work = workThatAwaits(awaited, OpKind::kRecv, 0, kTooLong);
  const std::optional<Error> error = rank.diagnosis.diagnose(*work);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kTimeout);
  EXPECT_TRUE(awaited.isAbandoned);
  EXPECT_FALSE(rank.failure.hasEnded());
}

TEST(Diagnosis, ALostPeerMattersIfItIsMissing) {
  DiagnosedRank rank(0, 3);
  rank.peers.liveness->reportLost(2, "closed the connection");
  Awaited awaited;
  awaited.missing = {1};
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  EXPECT_EQ(rank.textOf(*work), "");
  awaited.missing = {1, 2};
  const std::string text = rank.textOf(*work);
  EXPECT_TRUE(text.starts_with("rank 2 (host host-2")) << text;
  EXPECT_NE(text.find("closed the connection, noticed 0.0 s into the operation"), text.npos)
      << text;
  EXPECT_TRUE(rank.failure.hasEnded());
}

TEST(Diagnosis, WhatAnotherRankSaidComesFirst) {
  DiagnosedRank rank(0, 3);
  rank.failure.learn({Error(ErrorKind::kMismatch, "ranks disagree"), {}, 1});
  rank.peers.liveness->reportLost(1, "closed the connection");
  Awaited awaited;
  awaited.missing = {1};
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1, kTooLong);
  EXPECT_EQ(rank.textOf(*work), "ranks disagree");
}

// On one host a rank shows how far it got. One that has done its part may go.
TEST(Diagnosis, APeerThatLeftMattersIfItHasNotFinished) {
  const auto region = transport::shm::Region::create(2, 0);
  DiagnosedRank rank(0, 2, region);
  transport::RankCells& peer = region->view(1).mine();
  peer.presence = transport::Presence::kLeft;
  peer.completed = 5;
  Awaited awaited;
  const auto fifth = workThatAwaits(awaited, OpKind::kAllReduce, 5);
  EXPECT_EQ(rank.textOf(*fifth), "");
  const auto sixth = workThatAwaits(awaited, OpKind::kAllReduce, 6);
  EXPECT_NE(rank.textOf(*sixth).find("left the group"), std::string::npos);
}

TEST(Diagnosis, AReceiveFromAnyoneWaitsForThoseWhoAreStillThere) {
  const auto region = transport::shm::Region::create(3, 0);
  DiagnosedRank rank(0, 3, region);
  Awaited awaited;
  awaited.missing = {1, 2};
  const auto work = workThatAwaits(awaited, OpKind::kRecv, 0);
  region->view(1).mine().presence = transport::Presence::kLeft;
  EXPECT_EQ(rank.textOf(*work), "");
  region->view(2).mine().presence = transport::Presence::kLeft;
  EXPECT_NE(rank.textOf(*work).find("left the group"), std::string::npos);
}

// --- ranks that disagree -------------------------------------------------------------------------

// What rank 1 says of where it is: it has begun `signature`.
void answerOfRank1(LoneRank& rank, const Signature& signature) {
  FlightBoard board;
  board.collectives.begin(signature, 1, 1);
  const std::vector<std::byte> answer = encodePosition(positionOn(board, 2), signature.sequence);
  rank.positions.noteAnswer(
      1, std::string_view(reinterpret_cast<const char*>(answer.data()), answer.size()));
}

TEST(Diagnosis, BetweenHostsAllAreAskedBeforeADisagreementIsTold) {
  DiagnosedRank rank(0, 2);
  rank.positions.board().collectives.begin({}, 1, 1);
  Awaited awaited;
  awaited.missing = {1};
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  rank.positions.noteBegin(*work);
  const Error mismatch(ErrorKind::kMismatch, "as two ranks see it");
  EXPECT_FALSE(rank.diagnosis.suspect(*work, Error(ErrorKind::kInternal, "something else")));
  ASSERT_TRUE(rank.diagnosis.suspect(*work, mismatch));
  EXPECT_EQ(rank.textOf(*work), "") << "the answer may still come";
  ASSERT_EQ(rank.wires->sent.size(), 1u);
  EXPECT_EQ(rank.wires->sent[0].header.tag, kAskPosition);
  EXPECT_EQ(rank.textOf(*work), "");
  EXPECT_EQ(rank.wires->sent.size(), 1u) << "it asks again a little later";
  Signature theirs = work->signature();
  theirs.count = 7;
  answerOfRank1(rank, theirs);
  const std::string text = rank.textOf(*work);
  EXPECT_NE(text.find("x 7"), text.npos) << text;
  EXPECT_NE(text.find("It is the first collective of this group."), text.npos) << text;
  EXPECT_TRUE(rank.failure.hasEnded());
  EXPECT_FALSE(rank.diagnosis.suspect(*work, mismatch)) << "the group has failed";
}

TEST(Diagnosis, ADisagreementOfTwoRanksOnlyIsToldAsTheySeeIt) {
  DiagnosedRank rank(0, 2);
  Awaited awaited;
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  rank.positions.noteBegin(*work);
  ASSERT_TRUE(rank.diagnosis.suspect(*work, Error(ErrorKind::kMismatch, "as two ranks see it")));
  answerOfRank1(rank, work->signature());
  EXPECT_TRUE(rank.textOf(*work).starts_with("as two ranks see it"));
}

TEST(Diagnosis, OnOneHostADisagreementIsToldAtOnce) {
  DiagnosedRank rank(0, 2, transport::shm::Region::create(2, 0));
  Awaited awaited;
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  EXPECT_FALSE(rank.diagnosis.suspect(*work, Error(ErrorKind::kMismatch, "all have seen it")));
}

TEST(Diagnosis, TellsTheCollectivesBeforeADisagreement) {
  DiagnosedRank rank(0, 2);
  Awaited awaited;
  for (std::uint64_t sequence = 1; sequence <= 6; ++sequence) {
    const auto work = workThatAwaits(awaited, OpKind::kBarrier, sequence);
    rank.positions.noteBegin(*work);
    rank.positions.noteEnd(*work, true);
  }
  const auto work = workThatAwaits(awaited, OpKind::kAllReduce, 7);
  const std::string text =
      rank.diagnosis.withHistory(*work, Error(ErrorKind::kMismatch, "they differ.")).what();
  EXPECT_EQ(text, "they differ. Before it all ranks made barrier #6, barrier #5, barrier #4.");
}

}  // namespace
}  // namespace smd::engine::test
