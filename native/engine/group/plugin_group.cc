// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/plugin_group.h"

#include <exception>
#include <utility>

#include "engine/group/communicator.h"

namespace smd::engine {
namespace {

using algorithms::Request;

class PluginGroup final : public plugin_api::Group {
 public:
  explicit PluginGroup(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  int rank() const noexcept override { return communicator_->rank(); }
  int size() const noexcept override { return communicator_->size(); }

  void allReduce(Fragments input, std::byte* output, std::uint64_t count, DType dtype, ReduceOp op,
                 plugin_api::Agreement agreement,
                 plugin_api::Completion completion) noexcept override {
    Request request;
    request.kind = OpKind::kAllReduce;
    request.dtype = dtype;
    request.op = op;
    request.count = count;
    agree(request, std::move(agreement));
    request.output = output;
    if (count == 0) {
      request.input = output;
    } else if (input.front().data == output) {
      request.input = output;
    } else {
      request.fragments = std::move(input);
    }
    submit(std::move(request), std::move(completion));
  }

  void broadcast(std::byte* data, std::uint64_t count, DType dtype, int root,
                 plugin_api::Agreement agreement,
                 plugin_api::Completion completion) noexcept override {
    Request request;
    request.kind = OpKind::kBroadcast;
    request.dtype = dtype;
    request.root = root;
    request.count = count;
    agree(request, std::move(agreement));
    request.input = request.output = data;
    submit(std::move(request), std::move(completion));
  }

  void allGather(const std::byte* input, std::vector<std::byte*> outputs,
                 std::vector<std::uint64_t> counts, DType dtype, plugin_api::Agreement agreement,
                 plugin_api::Completion completion) noexcept override {
    Request request;
    request.kind = OpKind::kAllGather;
    request.dtype = dtype;
    agree(request, std::move(agreement));
    request.input = input;
    request.count = counts[static_cast<std::size_t>(rank())];
    request.outputs = std::move(outputs);
    request.outputCounts = std::move(counts);
    submit(std::move(request), std::move(completion));
  }

  std::shared_ptr<std::byte> allocateShared(std::size_t bytes) noexcept override {
    try {
      auto buffer = communicator_->allocateShared(bytes, transport::shm::Contents::kAny);
      if (buffer == nullptr) return nullptr;
      std::byte* data = buffer->data();
      return {std::move(buffer), data};
    } catch (
        const std::exception&) {  // the caller has other memory, and its operation will say why
      return nullptr;
    }
  }

  void abort(const std::string& reason) noexcept override {
    try {
      communicator_->abort(reason);
    } catch (const std::exception&) {  // no memory for the text: the others miss this rank later
    }
  }

 private:
  static void agree(Request& request, plugin_api::Agreement agreement) {
    request.layout = agreement.layout;
    request.label = agreement.label;
    request.purpose = std::move(agreement.purpose);
  }

  void submit(Request request, plugin_api::Completion completion) noexcept {
    std::shared_ptr<Work> work;
    try {
      work = communicator_->collective(std::move(request), Mode::kBrief, nanoseconds(0));
    } catch (const Error& error) {
      return completion(&error);
    } catch (const std::exception& exception) {  // no memory, most likely
      const Error error(ErrorKind::kInternal, reasonOf(exception));
      return completion(&error);
    }
    // The thread that completes the work keeps it alive meanwhile.
    work->onCompletion([raw = work.get(), completion = std::move(completion)] {
      completion(raw->error() ? &*raw->error() : nullptr);
    });
  }

  const std::shared_ptr<Communicator> communicator_;
};

}  // namespace

std::shared_ptr<plugin_api::Group> makePluginGroup(std::shared_ptr<Communicator> communicator) {
  return std::make_shared<PluginGroup>(std::move(communicator));
}

}  // namespace smd::engine
