// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/tickets.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/fork.h"
#include "tensorflow_ops/invocation.h"
#include "tensorflow_ops/patience.h"

namespace smd::tensorflow_ops {
namespace {

using InvocationPtr = std::shared_ptr<Invocation>;

// TensorFlow copies what is not aligned.
struct alignas(64) Number {
  std::int64_t value = 0;
};

// By the number of its ticket: each operation whose results have not been taken. Never destroyed:
// operations may run while static destructors do. Guarded by ForkGuard: a forked child finds it
// whole, and nobody in it.
std::map<std::int64_t, InvocationPtr>& late() {
  static auto* instance = new std::map<std::int64_t, InvocationPtr>;
  return *instance;
}

InvocationPtr find(std::int64_t number) {
  const ForkGuard lock;
  const auto found = late().find(number);
  return found == late().end() ? nullptr : found->second;
}

InvocationPtr take(std::int64_t number) {
  const ForkGuard lock;
  const auto node = late().extract(number);
  return node.empty() ? nullptr : std::move(node.mapped());
}

void dropTicket(void*, std::size_t, void* argument) {
  const std::unique_ptr<Number> number(static_cast<Number*>(argument));
  if (const InvocationPtr invocation = take(number->value)) invocation->abandon();
}

std::int64_t numberOf(const TensorPtr& ticket) {
  return *static_cast<const std::int64_t*>(api().TensorData(ticket.get()));
}

struct WaitOperation {
  std::chrono::milliseconds patience{0};
};

// One run of SmddpWait: until the operation has ended, or for a while. It fails as the operation
// does, so that no other operation begins in the group that has failed.
class TicketWait final : public Waiting, public EndListener {
 public:
  TicketWait(TfContext* context, const TfDone* done, TensorPtr ticket)
      : context_(context),
        ticket_(std::move(ticket)),
        done_(*reinterpret_cast<const std::function<void()>*>(done)) {}

  // Before anybody else knows it.
  std::int64_t number() const { return numberOf(ticket_); }

  void hasEnded(const std::optional<Failure>& failure) noexcept override {
    end([&](const StatusPtr& status, const TensorPtr&) {
      if (failure) {
        api().SetStatus(status.get(), failure->code, failure->text.c_str());
      } else {
        returnNoTicket(context_, 0, status);
      }
    });
  }
  bool giveUp() noexcept override {
    end([this](const StatusPtr& status, const TensorPtr& ticket) {
      api().SetOutput(context_, 0, ticket.get(), status.get());
    });
    return true;
  }

 private:
  // `giveOutput` gives the output, or says why not. Not made if it has ended.
  template <class Function>
  void end(const Function& giveOutput) noexcept {
    std::function<void()> done;
    TensorPtr ticket;
    {
      const std::lock_guard lock(mutex_);
      if (!done_) return;
      done.swap(done_);
      ticket = std::move(ticket_);
    }
    const StatusPtr status = makeStatus();
    giveOutput(status, ticket);
    if (!isOk(status)) api().OpKernelContext_Failure(context_, status.get());
    ticket.reset();
    done();
  }

  TfContext* const context_;
  std::mutex mutex_;
  TensorPtr ticket_;
  std::function<void()> done_;  // empty: it has been called
};

}  // namespace

TensorPtr makeTicket(InvocationPtr invocation) {
  static std::atomic<std::int64_t> last{0};
  auto number = std::make_unique<Number>();
  number->value = ++last;
  {
    const ForkGuard lock;
    late().emplace(number->value, std::move(invocation));
  }
  Number* const raw = number.release();  // TensorFlow's from here on, also if it makes no tensor
  TensorPtr tensor(api().NewTensor(TfType::kInt64, nullptr, 0, &raw->value, sizeof raw->value,
                                   &dropTicket, raw));
  if (tensor == nullptr) throw std::bad_alloc();
  return tensor;
}

void returnNoTicket(TfContext* context, int output, const StatusPtr& status) {
  std::int64_t zero = 0;
  const TensorPtr tensor(
      api().AllocateOutput(context, output, TfType::kInt64, nullptr, 0, sizeof zero, status.get()));
  if (isOk(status)) std::memcpy(api().TensorData(tensor.get()), &zero, sizeof zero);
}

TensorPtr makePlaceholder(TfType type) {
  static Number nothing;
  constexpr std::int64_t kNoElements = 0;
  TensorPtr tensor(api().NewTensor(
      type, &kNoElements, 1, &nothing, 0, [](void*, std::size_t, void*) {}, nullptr));
  if (tensor == nullptr) throw std::bad_alloc();
  return tensor;
}

void* createWait(TfConstruction* construction) {
  const StatusPtr status = makeStatus();
  std::int64_t patience = 0;
  api().OpKernelConstruction_GetAttrInt64(construction, "patience_ms", &patience, status.get());
  if (!isOk(status)) {
    api().OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return new WaitOperation{std::chrono::milliseconds(patience)};
}

void destroyWait(void* operation) { delete static_cast<WaitOperation*>(operation); }

void computeWait(void* operation, TfContext* context, TfDone* done) {
  const StatusPtr status = makeStatus();
  TfTensor* raw = nullptr;
  api().GetInput(context, 0, &raw, status.get());
  const auto waiting = std::make_shared<TicketWait>(context, done, TensorPtr(raw));
  if (!isOk(status)) {
    return waiting->hasEnded(Failure{api().GetCode(status.get()), api().Message(status.get())});
  }
  const InvocationPtr invocation = find(waiting->number());
  if (invocation == nullptr) return waiting->hasEnded(std::nullopt);
  if (!invocation->tellEnd(waiting)) return;
  giveUpAfter(static_cast<const WaitOperation*>(operation)->patience, waiting);
}

void computeSettle(void*, TfContext* context) {
  constexpr int kBefore = 2;  // the ticket and the order token
  const StatusPtr status = makeStatus();
  const auto input = [&](int index) {
    TfTensor* raw = nullptr;
    if (isOk(status)) api().GetInput(context, index, &raw, status.get());
    return TensorPtr(raw);
  };
  const TensorPtr ticket = input(0);
  const std::int64_t number = isOk(status) ? numberOf(ticket) : 0;
  const InvocationPtr invocation = number == 0 ? nullptr : take(number);
  if (invocation != nullptr) {
    invocation->settle(context, status);
  } else if (number == 0) {
    const int numInputs = api().NumInputs(context);
    for (int i = kBefore; i < numInputs; ++i) {
      const TensorPtr tensor = input(i);
      if (isOk(status)) api().SetOutput(context, i - kBefore, tensor.get(), status.get());
    }
  } else {
    api().SetStatus(status.get(), TfCode::kInternal, "SMDDPError: a ticket was taken twice");
  }
  if (!isOk(status)) api().OpKernelContext_Failure(context, status.get());
}

}  // namespace smd::tensorflow_ops
