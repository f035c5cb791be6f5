// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How the operations introduce themselves to TensorFlow: attributes, kernels, shapes; and what is
// said where there is no TensorFlow, or one that does not take them.
#include "support/tensorflow_fake.h"

namespace smd::tensorflow_ops::test {
namespace {

class Registration : public ::testing::Test {
 protected:
  void SetUp() override { registerOnce(); }
};

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

TEST_F(Registration, EachOperationButASumRunsForItsEffect) {
  ASSERT_EQ(registry().operations.size(), 10u);
  for (const auto& [name, operation] : registry().operations) {
    EXPECT_EQ(operation.isStateful, name != "SmddpAddUp") << name;
    EXPECT_EQ(registry().kernels.at(name).device, "CPU") << name;
  }
}

const std::vector<std::string> kCollectives{"SmddpAllReduce", "SmddpBroadcast", "SmddpAllGather"};

TEST_F(Registration, CollectivesTakeTheOrderTokenFirst) {
  for (const auto& [name, operation] : registry().operations) {
    if (name == "SmddpWait" || name == "SmddpSettle" || name == "SmddpRaise" ||
        name == "SmddpAddUp") {
      continue;
    }
    ASSERT_EQ(operation.inputs.size(), 2u) << name;
    EXPECT_EQ(operation.inputs[0], "token: resource") << name;
    EXPECT_TRUE(has(operation.attributes, "key: string")) << name;
    EXPECT_TRUE(has(operation.attributes, "group: int = 0")) << name;
    EXPECT_TRUE(has(operation.attributes, "label: int = 0")) << name;
  }
  EXPECT_TRUE(has(registry().operations.at("SmddpAllReduce").attributes, "op: int"));
  EXPECT_TRUE(has(registry().operations.at("SmddpBroadcast").attributes, "root: int"));
}

TEST_F(Registration, EachHasASecondFormThatReturnsATicketAfterAWhile) {
  for (const std::string& name : kCollectives) {
    const TfOpBuilder& first = registry().operations.at(name);
    const TfOpBuilder& second = registry().operations.at(name + "OrTicket");
    EXPECT_EQ(second.inputs, first.inputs) << name;
    auto outputs = first.outputs, attributes = first.attributes;
    outputs.emplace_back("ticket: int64");
    EXPECT_EQ(second.outputs, outputs) << name;
    attributes.emplace_back("patience_ms: int >= 1 = 1000");
    EXPECT_EQ(second.attributes, attributes) << name;
  }
}

TEST_F(Registration, ReductionsAndBroadcastsHaveTheShapesOfTheirInputs) {
  for (const char* name :
       {"SmddpAllReduce", "SmddpBroadcast", "SmddpAllReduceOrTicket", "SmddpBroadcastOrTicket"}) {
    const bool hasTicket = std::string_view(name).ends_with("OrTicket");
    TfShapes shapes{{{true, {}}, {true, {2, -1}}, {false, {}}, {true, {}}}, {}};
    TfStatus status;
    registry().operations.at(name).shape(&shapes, &status);
    EXPECT_EQ(status.code, TfCode::kOk);
    ASSERT_EQ(shapes.outputs.size(), hasTicket ? 4u : 3u);
    EXPECT_EQ(shapes.outputs[0].dims, (std::vector<std::int64_t>{2, -1}));
    EXPECT_FALSE(shapes.outputs[1].isKnown);
    EXPECT_TRUE(shapes.outputs[2].isKnown && shapes.outputs[2].dims.empty());
    if (!hasTicket) continue;
    EXPECT_TRUE(shapes.outputs[3].isKnown && shapes.outputs[3].dims.empty());
  }
}

TEST_F(Registration, TheNumberOfGatheredRowsIsUnknown) {
  const ShapeFn shape = registry().operations.at("SmddpAllGather").shape;
  TfShapes rows{{{true, {}}, {true, {5, 3, -1}}}, {}};
  TfStatus status;
  shape(&rows, &status);
  EXPECT_EQ(status.code, TfCode::kOk);
  EXPECT_EQ(rows.outputs.at(0).dims, (std::vector<std::int64_t>{-1, 3, -1}));
  EXPECT_EQ(rows.outputs.size(), 1u);
  TfShapes withTicket{rows.inputs, {}};
  registry().operations.at("SmddpAllGatherOrTicket").shape(&withTicket, &status);
  EXPECT_EQ(withTicket.outputs.at(0).dims, rows.outputs.at(0).dims);
  EXPECT_TRUE(withTicket.outputs.at(1).isKnown && withTicket.outputs.at(1).dims.empty());
  TfShapes unknown{{{true, {}}, {false, {}}}, {}};
  shape(&unknown, &status);
  EXPECT_EQ(status.code, TfCode::kOk);
  EXPECT_FALSE(unknown.outputs.at(0).isKnown);
  TfShapes scalar{{{true, {}}, {true, {}}}, {}};
  shape(&scalar, &status);
  EXPECT_EQ(status.code, TfCode::kInvalidArgument);
  EXPECT_TRUE(scalar.outputs.empty());
}

TEST_F(Registration, WhatATicketStandsForHasTheShapesOfItsPlaceholders) {
  TfShapes wait{{{true, {}}}, {}};
  TfStatus status;
  registry().operations.at("SmddpWait").shape(&wait, &status);
  ASSERT_EQ(wait.outputs.size(), 1u);
  EXPECT_TRUE(wait.outputs[0].isKnown && wait.outputs[0].dims.empty());
  TfShapes settle{{{true, {}}, {true, {}}, {true, {2, -1}}, {false, {}}}, {}};
  registry().operations.at("SmddpSettle").shape(&settle, &status);
  ASSERT_EQ(settle.outputs.size(), 2u);
  EXPECT_EQ(settle.outputs[0].dims, (std::vector<std::int64_t>{2, -1}));
  EXPECT_FALSE(settle.outputs[1].isKnown);
}

TEST_F(Registration, AnAttributeThatIsMissingOrWrongIsTheConstructionsFailure) {
  const TfKernelBuilder& kernel = registry().kernels.at("SmddpAllReduce");
  TfConstruction good{{{"key", "k"}}, {{"group", 3}, {"op", 1}}};
  void* opaque = kernel.create(&good);
  EXPECT_NE(opaque, nullptr);
  kernel.destroy(opaque);
  kernel.destroy(nullptr);
  for (const std::int64_t op : {-1, 9, 1000}) {
    TfConstruction wrong{{{"key", "gradients"}}, {{"group", 3}, {"op", op}}};
    EXPECT_EQ(kernel.create(&wrong), nullptr);
    EXPECT_EQ(wrong.code, TfCode::kInvalidArgument);
    EXPECT_TRUE(wrong.text.starts_with("SMDDPConfigInvalid: " + std::to_string(op))) << wrong.text;
    EXPECT_TRUE(wrong.text.ends_with("; in gradients")) << wrong.text;
  }
  for (TfConstruction lacking :
       {TfConstruction{{}, {{"group", 3}, {"op", 1}}}, TfConstruction{{{"key", "k"}}, {{"op", 1}}},
        TfConstruction{{{"key", "k"}}, {{"group", 3}}}}) {
    EXPECT_EQ(kernel.create(&lacking), nullptr);
    EXPECT_EQ(lacking.text, "no such attribute");
  }
}

TEST_F(Registration, WhatTensorFlowRefusesIsTold) {
  registry().refused = "SmddpBroadcast";
  EXPECT_EQ(registerOperations(),
            "TensorFlow refuses the operation SmddpBroadcast: it is there already");
  registry().refused = "";
}

TEST_F(Registration, WithoutTensorFlowInTheProcessThereIsNothingToFind) {
  Api functions;
  EXPECT_EQ(findApi(functions),
            "libtensorflow_framework.so.2 is not loaded; import tensorflow first");
}

}  // namespace
}  // namespace smd::tensorflow_ops::test
