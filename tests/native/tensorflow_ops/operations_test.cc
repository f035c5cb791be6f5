// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations as TensorFlow runs them, with ranks as threads: what they return, that they do not
// wait where they are called, what becomes of memory, and how they end when something is wrong.
#include <random>

#include "engine/group/plugin_group.h"
#include "support/tensorflow_fake.h"
#include "tensorflow_ops/groups.h"
#include "tensorflow_ops/probe_group.h"

namespace smd::tensorflow_ops::test {
namespace {

using engine::test::kIsSlow;
using engine::test::World;
using engine::test::WorldOptions;
using Tensors = std::vector<TfTensor>;
using Ints = std::vector<std::int64_t>;

// Ranks that are threads of one process: a group each, by the number of the rank.
class Ranks {
 public:
  explicit Ranks(WorldOptions options) : world(std::move(options)) {
    registerOnce();
    for (int rank = 0; rank < world.size(); ++rank) {
      setGroup(rank, engine::makePluginGroup(world.of(rank).shared_from_this()));
    }
  }
  explicit Ranks(int size) : Ranks(WorldOptions{.size = size}) {}
  ~Ranks() {
    for (int rank = 0; rank < world.size(); ++rank) clearGroup(rank);
    world.closeAll();
    EXPECT_EQ(numHeld().load(), 0);  // of TensorFlow's tensors
  }
  World world;
};

std::unique_ptr<OpRun> start(const std::string& name, int rank, const Tensors& tensors,
                             std::map<std::string, std::int64_t> integers = {}) {
  integers.emplace("group", rank);
  return std::make_unique<OpRun>(name, TfConstruction{{{"key", "a test"}}, std::move(integers)},
                                 tensors);
}
std::unique_ptr<OpRun> startAllReduce(int rank, const Tensors& tensors,
                                      ReduceOp op = ReduceOp::kSum) {
  return start("SmddpAllReduce", rank, tensors, {{"op", static_cast<std::int64_t>(op)}});
}
std::unique_ptr<OpRun> startBroadcast(int rank, const Tensors& tensors, std::int64_t root) {
  return start("SmddpBroadcast", rank, tensors, {{"root", root}});
}
std::unique_ptr<OpRun> startAllGather(int rank, const TfTensor& tensor) {
  return start("SmddpAllGather", rank, {tensor});
}

std::string errorOf(const std::unique_ptr<OpRun>& run) { return run->wait().text; }

std::vector<Ints> manyTiny() {
  std::vector<Ints> shapes(2000, Ints{3});
  shapes.push_back({33333});
  return shapes;
}

// Small and large, alone and together, empty ones between; sizes that end in the middle of a line.
const std::vector<std::vector<Ints>>& manyShapes() {
  static const std::vector<std::vector<Ints>> shapes = {
      {{}},
      {{0}},
      {{3, 5}},
      {{100001}},
      {{2}, {}, {0, 4}, {7}},
      {{0}, {0, 2}},
      {{8191}, {1}},
      {{8192}, {1}},
      {{100001}, {}, {0}, {3, 3001}, {64}},
      manyTiny(),
  };
  return shapes;
}

class Kernels : public ::testing::TestWithParam<WorldOptions> {};

TEST_P(Kernels, ReduceTensorsOfAnySizes) {
  Ranks ranks(GetParam());
  const int size = ranks.world.size();
  ranks.world.run([&](int rank) {
    for (const auto& shapes : manyShapes()) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
        Tensors inputs;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          inputs.push_back(
              makeFloats(shapes[i], static_cast<float>(rank + 10 * static_cast<int>(i)), 0.5f));
        }
        const auto run = startAllReduce(rank, inputs, op);
        const Tensors& outputs = run->outputs();
        SMD_REQUIRE(outputs.size() == inputs.size());
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          EXPECT_EQ(outputs[i].dims, shapes[i]);
          std::vector<float> expected = floatsOf(inputs[i]);
          for (float& value : expected) {
            const float first = value - static_cast<float>(rank);
            const auto n = static_cast<float>(size);
            const float sum = n * first + n * (n - 1) / 2;
            value = op == ReduceOp::kSum ? sum : op == ReduceOp::kAvg ? sum / n : first + n - 1;
          }
          EXPECT_EQ(floatsOf(outputs[i]), expected);
        }
      }
    }
  });
}

TEST_P(Kernels, BroadcastTensorsOfAnySizes) {
  Ranks ranks(GetParam());
  const int size = ranks.world.size();
  ranks.world.run([&](int rank) {
    for (const auto& shapes : manyShapes()) {
      for (int root = 0; root < size; ++root) {
        Tensors inputs, expected;
        for (const Ints& shape : shapes) {
          inputs.push_back(makeFloats(shape, static_cast<float>(rank), 0.5f));
          expected.push_back(makeFloats(shape, static_cast<float>(root), 0.5f));
        }
        const auto run = startBroadcast(rank, inputs, root);
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          EXPECT_EQ(run->outputs()[i].dims, shapes[i]);
          EXPECT_EQ(floatsOf(run->outputs()[i]), floatsOf(expected[i]));
          EXPECT_EQ(floatsOf(inputs[i]),
                    floatsOf(makeFloats(shapes[i], static_cast<float>(rank), 0.5f)));
        }
      }
    }
  });
}

TEST_P(Kernels, GatherAnyNumbersOfRows) {
  Ranks ranks(GetParam());
  const int size = ranks.world.size();
  // By rank, as far as there are so many.
  const std::vector<Ints> numbersOfRows = {
      {1, 1, 1}, {3, 1, 2}, {0, 2, 1}, {0, 0, 0}, {20000, 1, 0}};
  ranks.world.run([&](int rank) {
    for (const Ints& rows : numbersOfRows) {
      for (const Ints& row : {Ints{}, Ints{3}, Ints{2, 5}, Ints{0}}) {
        std::vector<float> expected;
        std::int64_t total = 0;
        TfTensor input;
        for (int peer = 0; peer < size; ++peer) {
          Ints dims{rows[static_cast<std::size_t>(peer)]};
          total += dims[0];
          dims.insert(dims.end(), row.begin(), row.end());
          TfTensor tensor = makeFloats(dims, static_cast<float>(1000 * peer), 1);
          const std::vector<float> values = floatsOf(tensor);
          expected.insert(expected.end(), values.begin(), values.end());
          if (peer == rank) input = std::move(tensor);
        }
        const auto run = startAllGather(rank, input);
        Ints dims{total};
        dims.insert(dims.end(), row.begin(), row.end());
        EXPECT_EQ(run->outputs()[0].dims, dims);
        EXPECT_EQ(floatsOf(run->outputs()[0]), expected);
      }
    }
  });
}

TEST_P(Kernels, ManyOperationsFollowEachOther) {
  Ranks ranks(GetParam());
  const int size = ranks.world.size();
  ranks.world.run([&](int rank) {
    std::mt19937 random(7);  // the same on all ranks
    std::vector<std::unique_ptr<OpRun>> running;
    for (int i = 0; i < (kIsSlow ? 60 : 300); ++i) {
      const Ints shape{static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 30000 : 10))};
      const auto value = static_cast<float>(i);
      switch (random() % 3) {
        case 0:
          running.push_back(
              startAllReduce(rank, {makeFloats(shape, value), makeFloats({3}, value)}));
          break;
        case 1:
          running.push_back(startBroadcast(rank, {makeFloats(shape, value)}, i % size));
          break;
        default:
          // Its second collective must not be overtaken: what orders operations waits for its end.
          for (auto& run : running) run->wait();
          running.push_back(startAllGather(rank, makeFloats(shape, value)));
          running.back()->wait();
      }
      if (random() % 4 == 0) {
        for (auto& run : running) EXPECT_EQ(errorOf(run), "");
        running.clear();
      }
    }
    for (auto& run : running) EXPECT_EQ(errorOf(run), "");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Kernels,
    ::testing::Values(WorldOptions{.size = 1}, WorldOptions{.size = 2}, WorldOptions{.size = 3},
                      WorldOptions{.size = 2, .transport = engine::TransportChoice::kTcp}),
    [](const auto& world) {
      return std::to_string(world.param.size) +
             (world.param.transport == engine::TransportChoice::kTcp ? "overTcp" : "");
    });

TEST(KernelsTypes, AllThatTheyTakeAreMoved) {
  Ranks ranks(2);
  ranks.world.run([&](int rank) {
    for (int code = 0; code <= 30; ++code) {
      const auto type = static_cast<TfType>(code);
      if (!toDType(type)) continue;
      TfTensor input = makeTensor(type, {3});
      std::memset(input.buffer->data, rank, input.buffer->bytes);
      const auto received = startBroadcast(rank, {input}, 1);
      const auto gathered = startAllGather(rank, input);
      const auto* bytes = dataOf<std::uint8_t>(received->outputs()[0]);
      EXPECT_EQ(std::vector<std::uint8_t>(bytes, bytes + input.buffer->bytes),
                std::vector<std::uint8_t>(input.buffer->bytes, 1));
      const TfTensor& rows = gathered->outputs()[0];
      EXPECT_EQ(rows.buffer->bytes, 2 * input.buffer->bytes);
      EXPECT_EQ(dataOf<std::uint8_t>(rows)[0], 0);
      EXPECT_EQ(dataOf<std::uint8_t>(rows)[rows.buffer->bytes - 1], 1);
    }
    const auto text = errorOf(startAllReduce(rank, {makeTensor(static_cast<TfType>(7), {1})}));
    EXPECT_TRUE(text.starts_with("SMDDPUnsupported: ")) << text;
  });
}

TEST(KernelsMemory, ResultsAreViewsOfABucketThatIsUsedAgain) {
  Ranks ranks(2);
  ranks.world.run([&](int rank) {
    const Tensors inputs{makeFloats({20000}, 1), makeFloats({33}, 2)};
    const auto pool = findGroup(rank)->memory;
    auto run = startAllReduce(rank, inputs);
    const float* first = dataOf<float>(run->outputs()[0]);
    const auto offset = dataOf<float>(run->outputs()[1]) - first;
    EXPECT_TRUE(offset >= 20000 && offset < 20032) << offset;
    TfTensor kept = run->outputs()[1];
    run.reset();
    EXPECT_EQ(pool->keptBytes(), 0u);  // a view keeps all of it
    EXPECT_EQ(floatsOf(kept), std::vector<float>(33, 4));
    kept = {};
    EXPECT_GE(pool->keptBytes(), 4u * 20033);
    run = startAllReduce(rank, inputs);
    EXPECT_EQ(dataOf<float>(run->outputs()[0]), first);
  });
}

TEST(KernelsMemory, ResultsOutliveTheGroup) {
  std::vector<TfTensor> kept(2);
  {
    Ranks ranks(2);
    ranks.world.run([&](int rank) {
      kept[static_cast<std::size_t>(rank)] =
          startAllReduce(rank, {makeFloats({20000}, 1)})->outputs()[0];
    });
    for (int rank = 0; rank < 2; ++rank) {
      clearGroup(rank);
      ranks.world.of(rank);
    }
    ranks.world.closeAll();
    for (int rank = 0; rank < 2; ++rank) ranks.world.release(rank);
    for (const TfTensor& tensor : kept) EXPECT_EQ(floatsOf(tensor), std::vector<float>(20000, 2));
    kept.clear();
  }
}

TEST(KernelsAsync, ReturnBeforeTheOtherRanksHaveCome) {
  Ranks ranks(2);
  for (const Ints& shape : {Ints{1}, Ints{100000}}) {
    const auto early = startAllReduce(0, {makeFloats(shape, 1)});
    const auto second = startBroadcast(0, {makeFloats(shape, 7)}, 1);
    const auto third = startAllGather(0, makeFloats(shape, 7));
    EXPECT_FALSE(early->isDone());
    EXPECT_FALSE(second->isDone());
    EXPECT_FALSE(third->isDone());
    const auto late = startAllReduce(1, {makeFloats(shape, 2)});
    const auto lateSecond = startBroadcast(1, {makeFloats(shape, 8)}, 1);
    const auto lateThird = startAllGather(1, makeFloats(shape, 8));
    EXPECT_EQ(floatsOf(early->outputs()[0])[0], 3);
    EXPECT_EQ(floatsOf(late->outputs()[0])[0], 3);
    EXPECT_EQ(floatsOf(second->outputs()[0])[0], 8);
    EXPECT_EQ(floatsOf(third->outputs()[0]).back(), 8);
    lateSecond->wait();
    lateThird->wait();
  }
}

TEST(KernelsAsync, MayEndOnAThreadOfTheirOwn) {
  registerOnce();
  setGroup(77, makeProbeGroup());
  for (const Ints& shape : {Ints{3}, Ints{100000}}) {
    const TfTensor input = makeFloats(shape, 5);
    const auto reduced = startAllReduce(77, {input, input});
    const auto received = startBroadcast(77, {input}, 0);
    const auto gathered = startAllGather(77, input);
    EXPECT_FALSE(reduced->isDone());
    EXPECT_EQ(floatsOf(reduced->outputs()[1]), floatsOf(input));
    EXPECT_EQ(floatsOf(received->outputs()[0]), floatsOf(input));
    EXPECT_EQ(floatsOf(gathered->outputs()[0]), floatsOf(input));
  }
  clearGroup(77);
}

// --- tickets -------------------------------------------------------------------------------------

// Ranks of which 0 has come, with an operation that TensorFlow waits for 20 ms only.
class Late : public ::testing::TestWithParam<engine::TransportChoice> {
 protected:
  using Attributes = std::map<std::string, std::int64_t>;
  static constexpr std::int64_t kFailed = -1;
  struct Operation {
    std::string name;
    Attributes attributes;
    Tensors inputs[2];  // by rank
    std::vector<std::vector<float>> results;
  };

  static std::vector<Operation> operations() {
    const auto floats = [](float first, std::int64_t size) {
      return floatsOf(makeFloats({size}, first));
    };
    std::vector<Operation> all;
    for (const std::int64_t size : {5, 100000}) {
      all.push_back({"SmddpAllReduce",
                     {{"op", 0}},
                     {{makeFloats({size}, 1)}, {makeFloats({size}, 2)}},
                     {floats(3, size)}});
      const TfTensor small = makeFloats({3}, 1), empty = makeFloats({0}, 1);
      all.push_back({"SmddpAllReduce",
                     {{"op", 0}},
                     {{makeFloats({size}, 1), empty, small}, {makeFloats({size}, 2), empty, small}},
                     {floats(3, size), {}, floats(2, 3)}});
      for (const std::int64_t root : {0, 1}) {
        const auto value = static_cast<float>(root + 1);
        all.push_back({"SmddpBroadcast",
                       {{"root", root}},
                       {{makeFloats({size}, 1)}, {makeFloats({size}, 2)}},
                       {floats(value, size)}});
        all.push_back({"SmddpBroadcast",
                       {{"root", root}},
                       {{makeFloats({size}, 1), small}, {makeFloats({size}, 2), small}},
                       {floats(value, size), floats(1, 3)}});
      }
      std::vector<float> rows = floats(1, size);
      rows.insert(rows.end(), {2, 2});
      all.push_back(
          {"SmddpAllGather", {}, {{makeFloats({size}, 1)}, {makeFloats({2}, 2)}}, {rows}});
    }
    all.push_back({"SmddpAllGather", {}, {{makeFloats({0}, 1)}, {makeFloats({0}, 2)}}, {{}}});
    return all;
  }

  Late() : ranks(WorldOptions{.size = 2, .transport = GetParam()}) {}

  static std::unique_ptr<OpRun> startOf(const Operation& operation, int rank, int patience = 20) {
    auto attributes = operation.attributes;
    attributes["patience_ms"] = patience;
    return start(operation.name + "OrTicket", rank, operation.inputs[rank], std::move(attributes));
  }
  static std::int64_t numberOf(OpRun& run) { return *dataOf<std::int64_t>(run.ticket()); }
  static std::int64_t left(const TfTensor& ticket) {
    OpRun wait("SmddpWait", ticket, {});
    if (wait.wait().code != TfCode::kOk) return kFailed;
    return *dataOf<std::int64_t>(wait.outputs().at(0));
  }
  static void expectResults(const Operation& operation, OpRun& settled) {
    ASSERT_EQ(settled.outputs().size(), operation.results.size());
    for (std::size_t i = 0; i < operation.results.size(); ++i) {
      EXPECT_EQ(floatsOf(settled.outputs()[i]), operation.results[i]) << operation.name << " " << i;
    }
  }

  Ranks ranks;
};

TEST_P(Late, ResultsAreTakenWhereTheTicketIsGivenBack) {
  for (const Operation& operation : operations()) {
    const auto early = startOf(operation, 0);
    SMD_REQUIRE(early->outputs().size() == operation.results.size());  // though there are none yet
    const std::int64_t number = numberOf(*early);
    const auto root = operation.attributes.find("root");
    const bool mayEnd = root != operation.attributes.end() && root->second == 0;  // it has sent
    EXPECT_TRUE(number > 0 || mayEnd) << number;
    EXPECT_EQ(left(early->ticket()), number);
    OpRun waiting("SmddpWait", early->ticket(), {});
    const auto second = startOf(operation, 1);
    if (*dataOf<std::int64_t>(waiting.outputs().at(0)) != 0) {  // its own patience was over
      while (left(early->ticket()) != 0) {
      }
    }
    EXPECT_EQ(left(early->ticket()), 0);
    OpRun settled("SmddpSettle", early->ticket(), early->outputs());
    expectResults(operation, settled);
    if (numberOf(*second) == 0) {
      OpRun handedOn("SmddpSettle", second->ticket(), second->outputs());
      expectResults(operation, handedOn);
    }
    if (number == 0) continue;
    OpRun again("SmddpSettle", early->ticket(), early->outputs());
    EXPECT_EQ(again.wait().code, TfCode::kInternal);
  }
  // The tickets are gone, and that meant nothing.
  const auto zero = startAllReduce(0, {makeFloats({3}, 1)});
  EXPECT_EQ(floatsOf(startAllReduce(1, {makeFloats({3}, 1)})->outputs()[0]),
            std::vector<float>(3, 2));
  zero->wait();
}

TEST_P(Late, WhatEndsInTimeHasNone) {
  for (const Operation& operation : operations()) {
    const auto zero = startOf(operation, 0, 60'000);
    const auto one = startOf(operation, 1, 60'000);
    for (OpRun* run : {zero.get(), one.get()}) {
      EXPECT_EQ(numberOf(*run), 0);
      EXPECT_EQ(left(run->ticket()), 0);
      OpRun settled("SmddpSettle", run->ticket(), run->outputs());
      expectResults(operation, settled);
    }
  }
}

// As TensorFlow does with a step that has failed.
TEST_P(Late, ATicketThatIsDroppedIsToldToAllRanks) {
  const Operation operation = operations().front();
  const auto early = startOf(operation, 0);
  EXPECT_GT(numberOf(*early), 0);
  early->ticket() = {};
  const auto second = startOf(operation, 1);
  EXPECT_EQ(second->wait().code, TfCode::kAborted);
  const std::string& text = second->wait().text;
  EXPECT_TRUE(text.starts_with("SMDDPPeerLost: ")) << text;
  EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;
  EXPECT_NE(text.find("aborted the group: its step failed or was cancelled while a test waited for "
                      "other ranks; its own error says why, if there is one; in a test"),
            std::string::npos)
      << text;
  EXPECT_NE(errorOf(startOf(operation, 0)), "");
}

TEST_P(Late, ATicketThatIsDroppedWhileSomebodyWaitsIsDroppedWhenThatIsOver) {
  const Operation operation = operations().front();
  const auto early = startOf(operation, 0);
  auto waiting = std::make_unique<OpRun>("SmddpWait", early->ticket(), Tensors{});
  early->ticket() = {};
  EXPECT_GT(dataOf<std::int64_t>(waiting->outputs().at(0))[0], 0);  // which has the ticket now
  waiting.reset();
  EXPECT_EQ(startOf(operation, 1)->wait().code, TfCode::kAborted);
}

// The other rank has results that this one has not.
TEST_P(Late, ADroppedTicketOfWhatHasEndedIsToldAsWell) {
  const Operation operation = operations().front();
  const auto early = startOf(operation, 0);
  EXPECT_GT(numberOf(*early), 0);
  const auto second = startOf(operation, 1);
  while (left(early->ticket()) != 0) {
  }
  EXPECT_EQ(errorOf(second), "");
  early->ticket() = {};
  const std::string text = errorOf(startOf(operation, 1, 60'000));
  EXPECT_NE(text.find("its step failed or was cancelled"), std::string::npos) << text;
}

TEST_P(Late, ADroppedTicketOfWhatHasFailedIsNothing) {
  const Operation operation = operations().front();
  const auto early = startOf(operation, 0);
  EXPECT_GT(numberOf(*early), 0);
  ranks.world.of(1).abort("the test wants it");
  while (left(early->ticket()) != kFailed) {
  }
  early->ticket() = {};
  const std::string text = errorOf(startOf(operation, 0, 60'000));
  EXPECT_NE(text.find("the test wants it"), std::string::npos) << text;
}

TEST_P(Late, AFailureIsThatOfWhoeverWaitsOrTakesTheResults) {
  const Operation operation = operations().back();
  const auto early = startOf(operation, 0);
  EXPECT_GT(numberOf(*early), 0);
  ranks.world.of(1).abort("the test wants it");
  while (left(early->ticket()) != kFailed) {
  }
  OpRun waiting("SmddpWait", early->ticket(), {});
  EXPECT_EQ(waiting.wait().code, TfCode::kAborted);
  EXPECT_NE(waiting.wait().text.find("the test wants it"), std::string::npos);
  OpRun settled("SmddpSettle", early->ticket(), early->outputs());
  EXPECT_EQ(settled.wait().code, TfCode::kAborted);
  EXPECT_NE(settled.wait().text.find("the test wants it"), std::string::npos);
  EXPECT_TRUE(settled.wait().text.ends_with("; in a test")) << settled.wait().text;
}

INSTANTIATE_TEST_SUITE_P(Transports, Late,
                         ::testing::Values(engine::TransportChoice::kAuto,
                                           engine::TransportChoice::kTcp),
                         [](const auto& transport) {
                           return transport.param == engine::TransportChoice::kTcp ? "Tcp" : "Auto";
                         });

// --- errors --------------------------------------------------------------------------------------

TEST(KernelsErrors, RanksThatDisagreeAllFail) {
  // By rank; the same sizes in another order, too, and the same after padding.
  const std::vector<std::pair<std::vector<Ints>, std::vector<Ints>>> cases = {
      {{{3}}, {{4}}},
      {{{3}, {4}}, {{4}, {3}}},
      {{{20000}, {3}}, {{20000}, {4}}},
      {{{20000}}, {{10000}, {10000}}},
  };
  for (const auto& [zero, one] : cases) {
    Ranks ranks(2);
    ranks.world.run([&, &zero = zero, &one = one](int rank) {
      Tensors inputs;
      for (const Ints& shape : rank == 0 ? zero : one) inputs.push_back(makeFloats(shape, 1));
      const auto run = startAllReduce(rank, inputs);
      const TfContext& context = run->wait();
      EXPECT_EQ(context.code, TfCode::kInvalidArgument);
      EXPECT_TRUE(context.text.starts_with("SMDDPMismatch: all_reduce")) << context.text;
      EXPECT_NE(context.text.find("ranks disagree"), std::string::npos) << context.text;
      EXPECT_TRUE(context.text.ends_with("; in a test")) << context.text;
      EXPECT_EQ(findGroup(rank)->memory->keptBytes(), 0u);  // a peer may still write there
    });
  }
}

TEST(KernelsErrors, RowsThatCannotBeJoinedFailOnAllRanksAndHarmNothing) {
  Ranks ranks(2);
  ranks.world.run([&](int rank) {
    const auto failureOf = [rank](const TfTensor& zero, const TfTensor& one) {
      const auto run = startAllGather(rank, rank == 0 ? zero : one);
      EXPECT_EQ(run->wait().code, TfCode::kInvalidArgument);
      return run->wait().text;
    };
    EXPECT_EQ(failureOf(makeFloats({2, 3}, 1), makeFloats({5, 4}, 1)),
              "SMDDPMismatch: all_gather: rank 0 passes float32 [2, 3] and rank 1 passes float32 "
              "[5, 4]; expected one dtype, and shapes that differ in the number of rows (the first "
              "dimension) only. Look for data of uneven shape, or for a branch that depends on the "
              "rank before this call; in a test");
    const std::string otherType = failureOf(makeFloats({2}, 1), makeTensor(TfType::kInt64, {2}));
    EXPECT_NE(otherType.find("float32 [2] and rank 1 passes int64 [2]"), std::string::npos)
        << otherType;
    const std::string otherRank = failureOf(makeFloats({2}, 1), makeFloats({2, 1}, 1));
    EXPECT_TRUE(otherRank.starts_with("SMDDPMismatch: ")) << otherRank;
    const std::string scalar = failureOf(makeFloats({2}, 1), makeFloats({}, 1));
    EXPECT_TRUE(scalar.starts_with("SMDDPConfigInvalid: all_gather takes")) << scalar;
    const std::string deep = failureOf(makeFloats(Ints(17, 1), 1), makeFloats({1}, 1));
    EXPECT_TRUE(deep.starts_with("SMDDPConfigInvalid: all_gather takes")) << deep;
    EXPECT_EQ(errorOf(startAllGather(rank, makeFloats(Ints(16, 1), 1))), "");
    const auto after = startAllReduce(rank, {makeFloats({2}, 1)});
    EXPECT_EQ(floatsOf(after->outputs()[0]), std::vector<float>(2, 2));
  });
}

TEST(KernelsErrors, MoreRowsThanThereIsMemoryForIsTensorFlowsError) {
  registerOnce();
  setGroup(78, makeProbeGroup());
  // Not a real tensor: its memory is not touched before the rows are allocated.
  TfTensor huge = makeFloats({1}, 1);
  huge.dims = {std::int64_t{1} << 40};
  const auto run = startAllGather(78, huge);
  EXPECT_EQ(run->wait().code, TfCode::kResourceExhausted);
  EXPECT_EQ(run->wait().text, "no memory");
  clearGroup(78);
}

// While one exists the fake TensorFlow refuses something.
class Refusing {
 public:
  explicit Refusing(std::atomic<bool>& what) : what_(what) { what_ = true; }
  ~Refusing() { what_ = false; }
  Refusing(const Refusing&) = delete;
  Refusing& operator=(const Refusing&) = delete;

 private:
  std::atomic<bool>& what_;
};

// What has been reduced is let go of once, by TensorFlow or by us.
TEST(KernelsErrors, OutputsThatTensorFlowDoesNotTakeFail) {
  Ranks ranks(2);
  const Tensors large{makeFloats({20000}, 1), makeFloats({33}, 2)};
  const auto codeAndText = [](const std::unique_ptr<OpRun>& run) {
    return std::pair(run->wait().code, run->wait().text);
  };
  ranks.world.run([&](int rank) {
    const auto pool = findGroup(rank)->memory;
    EXPECT_EQ(errorOf(startAllReduce(rank, large)), "");
    const std::size_t kept = pool->keptBytes();
    const auto all = [&] { SMD_REQUIRE(errorOf(startAllGather(rank, makeFloats({1}, 1))) == ""); };
    all();
    const Refusing newTensor(refusals().newTensor);
    all();
    EXPECT_EQ(codeAndText(startAllReduce(rank, large)),
              std::pair(TfCode::kInternal,
                        std::string("SMDDPError: TensorFlow made no tensor of 80000 bytes; "
                                    "expected one that views its bucket; in a test")));
    EXPECT_EQ(pool->keptBytes(), kept);
    all();
    const Refusing setOutput(refusals().setOutput);
    all();
    EXPECT_EQ(codeAndText(startBroadcast(rank, large, 0)),
              rank == 0 ? std::pair(TfCode::kInternal, std::string("no output"))
                        : std::pair(TfCode::kOk, std::string()));
    all();
  });
}

TEST(KernelsErrors, ARootThatIsNoRankFails) {
  Ranks ranks(2);
  for (const std::int64_t root : {std::int64_t{-1}, std::int64_t{2}, std::int64_t{1} << 33}) {
    const auto run = startBroadcast(0, {makeFloats({2}, 1)}, root);
    EXPECT_EQ(run->wait().code, TfCode::kInvalidArgument);
    EXPECT_TRUE(run->wait().text.starts_with("SMDDPConfigInvalid: root ")) << run->wait().text;
  }
}

TEST(KernelsErrors, WhatCannotBeReducedIsUnimplemented) {
  Ranks ranks(1);
  for (const std::int64_t length : {3, 100000}) {
    const auto run = startAllReduce(0, {makeTensor(TfType::kBool, {length})}, ReduceOp::kAvg);
    EXPECT_EQ(run->wait().code, TfCode::kUnimplemented);
    EXPECT_TRUE(run->wait().text.starts_with("SMDDPUnsupported: ")) << run->wait().text;
  }
}

TEST(KernelsErrors, LabelsThatDifferAreToldOnAllRanks) {
  const std::vector<std::pair<std::string, std::string>> operations{
      {"SmddpAllReduce", "op"}, {"SmddpBroadcast", "root"}, {"SmddpAllGather", "unused"}};
  for (const auto& [name, attribute] : operations) {
    for (const std::int64_t length : {6, 100000}) {
      Ranks ranks(2);
      std::vector<std::unique_ptr<OpRun>> running;
      for (int rank = 0; rank < 2; ++rank) {
        running.push_back(
            start(name, rank, {makeFloats({length}, 1)}, {{attribute, 0}, {"label", rank + 1}}));
      }
      for (const auto& run : running) {
        EXPECT_EQ(run->wait().code, TfCode::kInvalidArgument);
        const std::string& text = run->wait().text;
        EXPECT_TRUE(text.starts_with("SMDDPMismatch: ")) << text;
        const std::string purpose = " for a test, shape [" + std::to_string(length) + "]";
        EXPECT_NE(text.find(purpose + "; rank 1 called"), std::string::npos) << text;
        EXPECT_NE(text.find("of another name, or in another order"), std::string::npos) << text;
      }
    }
  }
}

TEST(KernelsErrors, LabelsThatAreTheSameChangeNothing) {
  Ranks ranks(2);
  std::vector<std::unique_ptr<OpRun>> running;
  for (int rank = 0; rank < 2; ++rank) {
    running.push_back(
        start("SmddpAllReduce", rank, {makeFloats({5}, 1)}, {{"op", 0}, {"label", 7}}));
  }
  for (const auto& run : running) EXPECT_EQ(floatsOf(run->outputs()[0]), std::vector<float>(5, 2));
}

TEST(KernelsErrors, AnAbortEndsWhatIsUnderWay) {
  Ranks ranks(2);
  std::vector<std::unique_ptr<OpRun>> running;
  running.push_back(startAllReduce(0, {makeFloats({100000}, 1), makeFloats({3}, 1)}));
  running.push_back(startAllReduce(0, {makeFloats({3}, 1)}));
  running.push_back(startBroadcast(0, {makeFloats({100000}, 1), makeFloats({3}, 1)}, 1));
  running.push_back(startAllGather(0, makeFloats({3}, 1)));
  ranks.world.of(1).abort("the test wants it");
  for (const auto& run : running) {
    EXPECT_EQ(run->wait().code, TfCode::kAborted);
    const std::string& text = run->wait().text;
    EXPECT_TRUE(text.starts_with("SMDDPPeerLost: ")) << text;
    EXPECT_NE(text.find("the test wants it"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("; in a test")) << text;
  }
}

TEST(KernelsErrors, ARankThatDoesNotComeIsATimeout) {
  Ranks ranks(WorldOptions{.size = 2, .timeout = std::chrono::milliseconds(300)});
  const auto run = startAllReduce(0, {makeFloats({100000}, 1)});
  EXPECT_EQ(run->wait().code, TfCode::kDeadlineExceeded);
  EXPECT_TRUE(run->wait().text.starts_with("SMDDPTimeoutError: ")) << run->wait().text;
}

TEST(KernelsErrors, ClosingTheGroupEndsWhatIsUnderWayAndWhatComesLater) {
  Ranks ranks(2);
  const auto running = startAllReduce(0, {makeFloats({100000}, 1)});
  ranks.world.of(0).close();
  EXPECT_TRUE(running->isDone());
  EXPECT_TRUE(errorOf(running).starts_with("SMDDPConfigInvalid: ")) << errorOf(running);
  const auto closed = startAllReduce(0, {makeFloats({100000}, 1)});
  EXPECT_TRUE(closed->isDone());
  EXPECT_NE(errorOf(closed).find("is closed"), std::string::npos) << errorOf(closed);
  clearGroup(0);
  const auto late = startAllReduce(0, {makeFloats({3}, 1)});
  EXPECT_EQ(late->wait().code, TfCode::kFailedPrecondition);
  EXPECT_TRUE(late->wait().text.starts_with("SMDDPNotInitialized: ")) << late->wait().text;
  EXPECT_TRUE(late->wait().text.ends_with("; in a test")) << late->wait().text;
}

TEST(Raise, FailsWithItsTextIfThereIsOne) {
  registerOnce();
  const std::string text = "StepAborted: rank 1";
  for (const std::size_t size : {std::size_t{0}, text.size()}) {
    TfTensor tensor = makeTensor(TfType::kUInt8, {static_cast<std::int64_t>(size)});
    std::copy_n(text.begin(), size, dataOf<std::uint8_t>(tensor));
    OpRun run("SmddpRaise", tensor, {});
    EXPECT_EQ(run.wait().code, size == 0 ? TfCode::kOk : TfCode::kAborted);
    EXPECT_EQ(run.wait().text, text.substr(0, size));
  }
  EXPECT_EQ(numHeld().load(), 0);  // of TensorFlow's tensors
}

std::vector<TfTensor> differentFloats(int count, std::vector<std::int64_t> dims) {
  std::vector<TfTensor> tensors;
  for (int i = 0; i < count; ++i) {
    const auto number = static_cast<float>(i);
    tensors.push_back(makeFloats(dims, 1.1f * number, 1e-3f / (number + 1)));
  }
  return tensors;
}

TEST(AddUp, AddsOneAfterTheOtherAndDivides) {
  registerOnce();
  for (const std::int64_t size : {0, 1, 13, 2048, 10007}) {
    for (const int count : {1, 2, 3, 8, 33}) {
      const auto tensors = differentFloats(count, {1, size});
      std::vector<float> expected = floatsOf(tensors[0]);
      for (int i = 1; i < count; ++i) {
        const auto added = floatsOf(tensors[static_cast<std::size_t>(i)]);
        for (std::size_t j = 0; j < expected.size(); ++j) expected[j] += added[j];
      }
      for (float& each : expected) each /= 3;
      OpRun run("SmddpAddUp", {{}, {{"divisor", 3}}}, tensors, OpRun::Plain{});
      EXPECT_EQ(floatsOf(run.outputs().at(0)), expected) << count << " of " << size;
      EXPECT_EQ(run.outputs().at(0).dims, (std::vector<std::int64_t>{1, size}));
    }
  }
  EXPECT_EQ(numHeld().load(), 0);  // of TensorFlow's tensors
}

TEST(AddUp, AddsDoubles) {
  registerOnce();
  std::vector<TfTensor> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(makeTensor(TfType::kDouble, {2000}));
    std::fill_n(dataOf<double>(tensors.back()), 2000, 0.1 * i);
  }
  OpRun run("SmddpAddUp", {{}, {{"divisor", 1}}}, tensors, OpRun::Plain{});
  EXPECT_EQ(dataOf<double>(run.outputs().at(0))[1999], 0.0 + 0.1 + 0.2);
}

TEST(AddUp, RefusesOtherShapes) {
  registerOnce();
  OpRun run("SmddpAddUp", {{}, {{"divisor", 1}}},
            {makeFloats({2, 3}, 1), makeFloats({2, 3}, 1), makeFloats({3, 2}, 1)}, OpRun::Plain{});
  EXPECT_EQ(run.wait().code, TfCode::kInvalidArgument);
  EXPECT_EQ(run.wait().text,
            "tensors of shapes [2, 3] and [3, 2] cannot be added; expected one shape");
  EXPECT_EQ(numHeld().load(), 0);
}

}  // namespace
}  // namespace smd::tensorflow_ops::test
