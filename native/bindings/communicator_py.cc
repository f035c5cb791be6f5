// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "bindings/communicator_py.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

#include "bindings/buffer_py.h"
#include "bindings/duration.h"
#include "bindings/message_py.h"
#include "bindings/options_py.h"
#include "bindings/request_py.h"
#include "bindings/shared_buffer_py.h"
#include "bindings/work_py.h"
#include "engine/communicator.h"
#include "engine/registry.h"
#include "engine/seam_group.h"

namespace smd::bindings {
namespace {

bool isInUse(std::uintptr_t address, std::size_t bytes) {
  const auto communicators = engine::liveCommunicators();
  return std::any_of(communicators.begin(), communicators.end(), [&](const auto& communicator) {
    return communicator->isInUse(input(address), bytes);
  });
}

// What Python sees of an operation, with the type the stub shows.
class WorkOrNone : public nb::object {
  NB_OBJECT_DEFAULT(WorkOrNone, nb::object, "Work | None", isAnyObject)
};
class WorkOrRank : public nb::object {
  NB_OBJECT_DEFAULT(WorkOrRank, nb::object, "int | Work", isAnyObject)
};
class MessageOrNone : public nb::object {
  NB_OBJECT_DEFAULT(MessageOrNone, nb::object, "Message | None", isAnyObject)
};
class SharedBufferOrNone : public nb::object {
  NB_OBJECT_DEFAULT(SharedBufferOrNone, nb::object, "SharedBuffer | None", isAnyObject)
};
using RankInfo = nb::typed<nb::dict, nb::str, nb::object>;

struct CallOptions {
  bool isAsync;
  double timeoutSeconds;
  nb::object owner;
};

// Whose memory has been looked at, and is held meanwhile.
CallOptions onArray(bool isAsync, double timeoutSeconds, nb::object array) {
  if (isAsync) array = holderOf(std::move(array), 0);
  return {isAsync, timeoutSeconds, std::move(array)};
}

// Nothing has begun: what `Held` of smdistributed.collectives holds for it is the caller's again.
void letGoOf(const nb::object& owner) {
  if (!nb::hasattr(owner, "_let_go")) return;
  try {
    owner.attr("_let_go")();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("smdistributed Held");
  }
}

class PyCommunicator {
  // Defined first: what it returns is deduced.
  template <class Function>
  auto guarded(Function&& function) const {
    try {
      return function();
    } catch (const Error& error) {
      errors_->raise(error);
    } catch (const engine::Interrupted&) {
      throw nb::python_error();  // the signal handler's exception is set
    }
  }

 public:
  PyCommunicator(int rank, int worldSize, nb::object exchange, const PyEngineOptions& options,
                 std::string name, nb::object errors)
      : errors_(std::make_shared<ErrorClasses>(errors)) {
    guarded([&] {
      engine::EngineOptions chosen = toOptions(options);
      const auto exchangeBytes = [&exchange](const std::string& key, const std::string& value) {
        nb::gil_scoped_acquire acquire;
        const nb::object values =
            exchange(nb::str(key.c_str()), nb::bytes(value.data(), value.size()));
        std::vector<std::string> all;
        for (nb::handle item : values) {
          const auto bytes = nb::cast<nb::bytes>(item);
          all.emplace_back(bytes.c_str(), bytes.size());
        }
        return all;
      };
      nb::gil_scoped_release release;
      communicator_ = engine::Communicator::create(rank, worldSize, exchangeBytes,
                                                   std::move(chosen), std::move(name));
    });
  }

  ~PyCommunicator() {
    nb::gil_scoped_release release;
    seam_.group.reset();
    communicator_.reset();
  }

  engine::Communicator& engine() const { return *communicator_; }

  std::uintptr_t seamHandle() {
    if (seam_.group == nullptr) seam_.group = engine::makeSeamGroup(communicator_);
    return reinterpret_cast<std::uintptr_t>(&seam_);
  }

  nb::typed<nb::list, RankInfo> topology() const {
    nb::list ranks;
    const auto& identities = communicator_->membership().identities;
    for (int peer = 0; peer < communicator_->size(); ++peer) {
      nb::dict entry;
      const bool isSelf = peer == communicator_->rank();
      const bool isLocal = communicator_->sharesMemoryWith(peer);
      entry["host"] = identities[static_cast<std::size_t>(peer)].host;
      entry["pid"] = identities[static_cast<std::size_t>(peer)].pid;
      entry["is_local"] = isLocal;
      entry["transport"] = isSelf ? "self" : isLocal ? "shm" : "tcp";
      ranks.append(entry);
    }
    return nb::typed<nb::list, RankInfo>(ranks);
  }

  std::string explain(const std::string& collective, std::uint64_t payloadBytes) const {
    for (int kind = 0; kind < static_cast<int>(OpKind::kSend); ++kind) {
      if (smd::name(static_cast<OpKind>(kind)) != collective) continue;
      const engine::Choice choice = communicator_->choose(static_cast<OpKind>(kind), payloadBytes);
      return std::string(engine::name(choice.algorithm)) + ": " + choice.reason;
    }
    errors_->raise(
        Error(ErrorKind::kConfiguration,
              "\"" + collective + "\" is no collective; expected a name such as all_reduce"));
  }

  SharedBufferOrNone allocateShared(std::int64_t bytes, bool isZeroed) const {
    if (bytes < 1) {
      throw nb::value_error(("allocate_shared was asked for " + std::to_string(bytes) +
                             " bytes; expected at least 1. Skip empty buffers.")
                                .c_str());
    }
    auto buffer = guarded([&] {
      nb::gil_scoped_release release;
      return communicator_->allocateShared(
          static_cast<std::size_t>(bytes),
          isZeroed ? transport::shm::Contents::kZeros : transport::shm::Contents::kAny);
    });
    if (buffer == nullptr) return nb::borrow<SharedBufferOrNone>(nb::none());
    return nb::borrow<SharedBufferOrNone>(nb::cast(PySharedBuffer(std::move(buffer))));
  }

  void postMessage(int peer, const nb::bytes& header, const PySegments& segments) const {
    guarded([&] { bindings::postMessage(*communicator_, peer, header, segments); });
  }
  MessageOrNone nextMessage(double timeoutSeconds) const {
    return nb::borrow<MessageOrNone>(
        guarded([&] { return bindings::nextMessage(*communicator_, timeoutSeconds); }));
  }

  void abort(const std::string& reason) const {
    {
      nb::gil_scoped_release release;
      communicator_->abort(reason);
    }
    dropWhatHasEnded();
  }
  void close() const {
    if (communicator_->isInterruptedHere()) {
      errors_->raise(Error(
          ErrorKind::kConfiguration,
          "group '" + communicator_->name() +
              "' is closed in a signal handler that interrupts one of its calls; expected that "
              "elsewhere, since that call goes on only after the handler. Raise an "
              "exception in the handler to end the call, and close the group after it; or call "
              "abort() here."));
    }
    if (engine::Work::isCallingBack()) {
      errors_->raise(Error(
          ErrorKind::kConfiguration,
          "group '" + communicator_->name() +
              "' is closed in a done-callback of an operation; expected that elsewhere, since "
              "closing waits for the thread that runs it. Call abort() here, and close() on "
              "a thread of your own."));
    }
    {
      nb::gil_scoped_release release;
      communicator_->close();
    }
    dropWhatHasEnded();
  }

  // Runs a collective; None once complete, or its Work.
  WorkOrNone collective(Request&& request, const CallOptions& call) const {
    return nb::borrow<WorkOrNone>(run(
        call,
        [&](engine::Mode mode) {
          return communicator_->collective(std::move(request), mode,
                                           toDuration(call.timeoutSeconds));
        },
        [](const engine::Work&) { return nb::none(); }));
  }

  nb::object sendOrReceive(bool isSend, std::uintptr_t address, std::uint64_t count, int dtype,
                           int peer, std::uint64_t tag, const CallOptions& call) const {
    return run(
        call,
        [&](engine::Mode mode) {
          const nanoseconds timeout = toDuration(call.timeoutSeconds);
          return isSend ? communicator_->send(input(address), count, toDType(dtype), peer, tag,
                                              mode, timeout)
                        : communicator_->receive(output(address), count, toDType(dtype), peer, tag,
                                                 mode, timeout);
        },
        [isSend](const engine::Work& work) -> nb::object {
          if (isSend) return nb::none();
          return nb::int_(work.source());
        });
  }

 private:
  template <class Start, class Result>
  nb::object run(const CallOptions& call, Start&& start, Result&& result) const {
    const engine::Mode mode = call.isAsync ? engine::Mode::kAsync : engine::Mode::kBlocking;
    dropWhatHasEnded();
    std::unique_ptr<PyWork> handle;
    if (call.isAsync) {
      handle = std::make_unique<PyWork>(communicator_, errors_, call.owner);
    }
    std::shared_ptr<engine::Work> work;
    try {
      work = guarded([&] {
        nb::gil_scoped_release release;
        return start(mode);
      });
    } catch (...) {
      if (handle != nullptr) {
        handle->letGo();
        letGoOf(call.owner);
      }
      throw;
    }
    if (call.isAsync) {
      handle->begin(std::move(work));
      return nb::cast(handle.release(), nb::rv_policy::take_ownership);
    }
    dropWhatHasEnded();
    if (work->error()) errors_->raise(*work->error());
    return result(*work);
  }

  std::shared_ptr<ErrorClasses> errors_;
  std::shared_ptr<engine::Communicator> communicator_;
  seam::Handle seam_;
};

#define SMD_CALL_PARAMETERS bool asyncOp, double timeoutSeconds, nb::object keepAlive
#define SMD_CALL \
  CallOptions { asyncOp, timeoutSeconds, std::move(keepAlive) }
#define SMD_ARRAY_ARGS nb::arg("async_op") = false, nb::arg("timeout_s") = 0.0
// Of calls whose ranks must agree on a layout too: a detail of the signature, 0 for nothing.
#define SMD_LAYOUT_ARGS SMD_CALL_ARGS, nb::arg("layout") = 0
#define SMD_CALL_ARGS SMD_ARRAY_ARGS, nb::arg("keep_alive") = nb::none()
// What the ranks must agree on besides: see Request::label.
#define SMD_LABEL_PARAMETERS std::uint64_t label, const char *purpose
#define SMD_LABEL_ARGS nb::arg("label") = 0, nb::arg("purpose") = ""
#define SMD_LABEL(request) \
  request.label = label;   \
  request.purpose = purpose

// One call from Python instead of two: where ranks share cores, each call finds the interpreter's
// code and data displaced from the caches by the others, and takes some 2 us.
constexpr const char* kOfArray =
    "What its namesake with _ptr does, on the memory of an array. Errors as of buffer().";

}  // namespace

void prepareExit() {
  nb::gil_scoped_release release;
  std::vector<std::shared_ptr<engine::Communicator>> open = engine::liveCommunicators();
  for (auto& communicator : open) communicator->close();
  open.clear();
  engine::ProgressThread::process().shutdown();
}

void registerCommunicator(nb::module_& module) {
  module.def(
      "storage_order", [](const std::vector<int>& dimensions) { return storageOrder(dimensions); },
      nb::arg("dimensions"),
      "The ``layout`` of an array whose dimensions lie in memory in this order, the one whose "
      "elements\nlie farthest apart first; without those of one element.");
  module.def(
      "check_tls_files",
      [](std::string certificate, std::string key, std::string authority) {
        try {
          transport::tcp::checkTlsFiles(
              {std::move(certificate), std::move(key), std::move(authority)});
        } catch (const Error& error) {
          ErrorClasses(nb::none()).raise(error);
        }
      },
      nb::arg("certificate"), nb::arg("key"), nb::arg("authority"),
      "Raises ConfigurationError for PEM files that cannot serve for TLS between ranks: missing,\n"
      "not belonging together, expired, not signed by the authority.");
  engine::setInterruptCheck([] {
    // Python runs signal handlers on its main thread only. Elsewhere there is nothing to ask for.
    if (gettid() != getpid()) return false;
    nb::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0 || Py_MakePendingCalls() != 0;  // see addDoneCallback()
  });
  nb::class_<PyCommunicator>(
      module, "Communicator",
      "A group of ranks, by raw pointers into CPU memory. Front ends build on this; users on\n"
      "smdistributed.collectives.Communicator.\n\n"
      "Pointers are addresses of contiguous memory, counts are elements, dtype and op are the "
      "codes\n"
      "of this module. Every call releases the GIL. With async_op=True it returns a Work and\n"
      "keep_alive is held until the operation is complete; otherwise it returns None when "
      "complete.\n"
      "timeout_s <= 0 means the communicator's own. Errors: the classes given as ``errors``.")
      .def(nb::init<int, int, nb::object, const PyEngineOptions&, std::string, nb::object>(),
           nb::arg("rank"), nb::arg("world_size"), nb::arg("exchange"), nb::arg("options"),
           nb::kw_only(), nb::arg("name") = "default", nb::arg("errors") = nb::none())
      .def_prop_ro("rank", [](const PyCommunicator& self) { return self.engine().rank(); })
      .def_prop_ro("world_size", [](const PyCommunicator& self) { return self.engine().size(); })
      .def_prop_ro("name", [](const PyCommunicator& self) { return self.engine().name(); })
      .def_prop_ro(
          "interfaces", [](const PyCommunicator& self) { return self.engine().interfaces(); },
          "Network interfaces of this rank through which it reaches other hosts, the main one "
          "first:\n'eth0 (10.1.0.2), eth1 (10.2.0.2)'; '' if there are no other hosts.")
      .def_prop_ro(
          "link",
          [](const PyCommunicator& self) {
            const auto& link = self.engine().link();
            return std::pair(link.latencySeconds, link.bytesPerSecond);
          },
          "Between hosts: seconds that a small message takes, and bytes per second. Measured when "
          "the\nfirst group over several hosts is made, of the slowest, rounded to powers of two "
          "(in\nmicroseconds); the same on all ranks.")
      .def("seam_handle", &PyCommunicator::seamHandle,
           "For other native libraries of this package: an address that is valid while this object "
           "is.")
      .def("topology", &PyCommunicator::topology, "Per rank: host, pid, is_local, transport.")
      .def("explain", &PyCommunicator::explain, nb::arg("collective"), nb::arg("payload_bytes"),
           "Which algorithm would be chosen, and why.")
      .def("allocate_shared", &PyCommunicator::allocateShared, nb::arg("nbytes"),
           nb::arg("zeroed") = true,
           "Memory that all ranks can reach, or None where there is none to be had:\n"
           "one rank, several hosts, TCP, no room, a group that is closed or has failed.\n\n"
           "Not a collective. all_reduce_ptr and reduce_ptr work in place, and the others read "
           "their\n"
           "inputs where they lie, on addresses inside such buffers, if every rank passes one.\n"
           "Unless zeroed, it holds what this rank's earlier buffers have left there.")
      .def("post_message", &PyCommunicator::postMessage, nb::arg("dest"), nb::arg("header"),
           nb::arg("segments"),
           "Sends a message of unknown size: ``header``, and a body of ``segments``, (address, "
           "nbytes)\neach. Each segment begins at a multiple of 64 bytes in the body.\n\n"
           "Never waits for the peer: all has been copied, once, when it returns. Any thread. "
           "Raises the\ngroup's error, that the peer has gone, or that the group is closed.")
      .def("next_message", &PyCommunicator::nextMessage, nb::arg("timeout_s"),
           "The oldest message that has arrived whole, from any peer; those of one peer come in "
           "the order\nof their posting. None if none has come in ``timeout_s`` seconds (0: only "
           "looks, negative:\nno limit), which harms nothing.\n\n"
           "One thread at a time. Raises the group's error, and PeerLostError once a peer has died "
           "or\nleft the group; what had arrived before is delivered first. The communicator's "
           "timeout_s and\nstall_s do not apply.")
      .def("abort", &PyCommunicator::abort, nb::arg("reason"),
           "Makes every rank's pending and later operations fail with ``reason``.")
      .def("close", &PyCommunicator::close, "Says goodbye and releases everything. Idempotent.")
      .def(
          "all_reduce",
          [](const PyCommunicator& self, nb::object array, int op, double factor, bool asyncOp,
             double timeoutSeconds) {
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, true, held);
            return self.collective(
                inPlace(reduction(OpKind::kAllReduce, memory.dtype, op, factor), memory),
                onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("op"), nb::arg("factor") = 1.0, SMD_ARRAY_ARGS, kOfArray)
      .def(
          "all_reduce_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype, int op,
             double factor, SMD_CALL_PARAMETERS, std::uint64_t layout) {
            Request request =
                inPlace(reduction(OpKind::kAllReduce, dtype, op, factor), {ptr, count, dtype});
            request.layout = layout;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS,
          "``layout``: 0, or what storage_order() gives for an array whose elements lie in another "
          "order\nthan their indices; ranks that differ in it get MismatchError. Also in "
          "reduce_ptr,\nbroadcast_ptr, and in coalesced_ptr, where it is a digest of all buffers'.")
      .def(
          "reduce",
          [](const PyCommunicator& self, nb::object array, int op, int root, double factor,
             bool asyncOp, double timeoutSeconds) {
            requireRank(self.engine().size(), root);
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, self.engine().rank() == root, held);
            Request request = inPlace(reduction(OpKind::kReduce, memory.dtype, op, factor), memory);
            request.root = root;
            return self.collective(std::move(request),
                                   onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("op"), nb::arg("root"), nb::arg("factor") = 1.0,
          SMD_ARRAY_ARGS, kOfArray)
      .def(
          "reduce_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype, int op,
             int root, double factor, SMD_CALL_PARAMETERS, std::uint64_t layout) {
            requireRank(self.engine().size(), root);
            Request request =
                inPlace(reduction(OpKind::kReduce, dtype, op, factor), {ptr, count, dtype});
            request.root = root;
            request.layout = layout;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("root"),
          nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS)
      .def(
          "broadcast",
          [](const PyCommunicator& self, nb::object array, int root, bool asyncOp,
             double timeoutSeconds) {
            requireRank(self.engine().size(), root);
            HeldBuffer held;
            const ArrayMemory memory = memoryOf(array, self.engine().rank() != root, held);
            Request request = inPlace(movement(OpKind::kBroadcast, memory.dtype), memory);
            request.root = root;
            return self.collective(std::move(request),
                                   onArray(asyncOp, timeoutSeconds, std::move(array)));
          },
          nb::arg("array").none(), nb::arg("root"), SMD_ARRAY_ARGS, kOfArray)
      .def(
          "broadcast_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int root, SMD_CALL_PARAMETERS, std::uint64_t layout, SMD_LABEL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = inPlace(movement(OpKind::kBroadcast, dtype), {ptr, count, dtype});
            request.root = root;
            request.layout = layout;
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("root"), SMD_LAYOUT_ARGS,
          SMD_LABEL_ARGS)
      .def(
          "all_gather_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, const Addresses& outPtrs,
             const Counts& counts, int dtype, SMD_CALL_PARAMETERS, SMD_LABEL_PARAMETERS) {
            requireLists(self.engine().size(), "all_gather", outPtrs.size(), counts.size());
            Request request = movement(OpKind::kAllGather, dtype);
            request.input = input(inPtr);
            request.outputs = outputs(outPtrs);
            request.outputCounts = counts;
            request.count = counts[static_cast<std::size_t>(self.engine().rank())];
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          SMD_CALL_ARGS, SMD_LABEL_ARGS)
      .def(
          "all_gather_into_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, std::uintptr_t outPtr,
             std::uint64_t count, int dtype, SMD_CALL_PARAMETERS) {
            Request request = movement(OpKind::kAllGather, dtype);
            const int size = self.engine().size();
            request.input = input(inPtr);
            request.outputs = consecutive(outPtr, count * elementSize(request.dtype), size);
            request.outputCounts.assign(static_cast<std::size_t>(size), count);
            request.count = count;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("count"), nb::arg("dtype"), SMD_CALL_ARGS)
      .def(
          "reduce_scatter_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, std::uintptr_t outPtr,
             const Counts& counts, int dtype, int op, double factor, SMD_CALL_PARAMETERS) {
            requireLists(self.engine().size(), "reduce_scatter", inPtrs.size(), counts.size());
            Request request = reduction(OpKind::kReduceScatter, dtype, op, factor);
            request.inputs = inputs(inPtrs);
            request.inputCounts = counts;
            request.output = output(outPtr);
            request.count = counts[static_cast<std::size_t>(self.engine().rank())];
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("out_ptr"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("op"), nb::arg("factor") = 1.0, SMD_CALL_ARGS)
      .def(
          "reduce_scatter_from_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, std::uintptr_t outPtr,
             std::uint64_t count, int dtype, int op, double factor, SMD_CALL_PARAMETERS) {
            Request request = reduction(OpKind::kReduceScatter, dtype, op, factor);
            const int size = self.engine().size();
            for (std::byte* part : consecutive(inPtr, count * elementSize(request.dtype), size)) {
              request.inputs.push_back(part);
            }
            request.inputCounts.assign(static_cast<std::size_t>(size), count);
            request.output = output(outPtr);
            request.count = count;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"),
          nb::arg("factor") = 1.0, SMD_CALL_ARGS)
      .def(
          "coalesced_ptr",
          [](const PyCommunicator& self, const std::string& collective, const Addresses& inPtrs,
             const Addresses& outPtrs, const Counts& counts, int dtype, int op, double factor,
             SMD_CALL_PARAMETERS, std::uint64_t layout, SMD_LABEL_PARAMETERS) {
            Request request = reduction(toCoalesced(collective), dtype, op, factor);
            request.pieces = pieces(inPtrs, outPtrs, counts);
            request.layout = layout;
            SMD_LABEL(request);
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("collective"), nb::arg("in_ptrs"), nb::arg("out_ptrs"), nb::arg("counts"),
          nb::arg("dtype"), nb::arg("op") = 0, nb::arg("factor") = 1.0, SMD_LAYOUT_ARGS,
          SMD_LABEL_ARGS,
          "all_reduce, all_gather or reduce_scatter of many small buffers, as one operation on a\n"
          "packed copy; bit for bit what one call for each would give. counts: elements of each\n"
          "buffer, or of its share for one rank on the side that has one for every rank. For\n"
          "all_reduce out_ptrs may be in_ptrs.")
      .def(
          "all_to_all_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, const Counts& inCounts,
             const Addresses& outPtrs, const Counts& outCounts, int dtype, SMD_CALL_PARAMETERS) {
            requireLists(self.engine().size(), "all_to_all input", inPtrs.size(), inCounts.size());
            requireLists(self.engine().size(), "all_to_all output", outPtrs.size(),
                         outCounts.size());
            Request request = movement(OpKind::kAllToAll, dtype);
            request.inputs = inputs(inPtrs);
            request.inputCounts = inCounts;
            request.outputs = outputs(outPtrs);
            request.outputCounts = outCounts;
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("in_counts"), nb::arg("out_ptrs"), nb::arg("out_counts"),
          nb::arg("dtype"), SMD_CALL_ARGS)
      .def(
          "gather_ptr",
          [](const PyCommunicator& self, std::uintptr_t inPtr, const Addresses& outPtrs,
             const Counts& counts, int dtype, int root, std::int64_t inCount, SMD_CALL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = movement(OpKind::kGather, dtype);
            request.root = root;
            request.input = input(inPtr);
            if (self.engine().rank() == root) {
              requireLists(self.engine().size(), "gather", outPtrs.size(), counts.size());
              request.outputs = outputs(outPtrs);
              request.outputCounts = counts;
            }
            request.count = inCount >= 0
                                ? static_cast<std::uint64_t>(inCount)
                                : counts.at(static_cast<std::size_t>(self.engine().rank()));
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptr"), nb::arg("out_ptrs"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("in_count") = -1, SMD_CALL_ARGS,
          "in_count: elements of this rank's input; -1: counts[rank] (then every rank gives "
          "counts).")
      .def(
          "scatter_ptr",
          [](const PyCommunicator& self, const Addresses& inPtrs, std::uintptr_t outPtr,
             const Counts& counts, int dtype, int root, std::int64_t outCount,
             SMD_CALL_PARAMETERS) {
            requireRank(self.engine().size(), root);
            Request request = movement(OpKind::kScatter, dtype);
            request.root = root;
            request.output = output(outPtr);
            if (self.engine().rank() == root) {
              requireLists(self.engine().size(), "scatter", inPtrs.size(), counts.size());
              request.inputs = inputs(inPtrs);
              request.inputCounts = counts;
            }
            request.count = outCount >= 0
                                ? static_cast<std::uint64_t>(outCount)
                                : counts.at(static_cast<std::size_t>(self.engine().rank()));
            return self.collective(std::move(request), SMD_CALL);
          },
          nb::arg("in_ptrs"), nb::arg("out_ptr"), nb::arg("counts"), nb::arg("dtype"),
          nb::arg("root"), nb::arg("out_count") = -1, SMD_CALL_ARGS,
          "out_count: elements of this rank's output; -1: counts[rank] (then every rank gives "
          "counts).")
      .def(
          "barrier",
          [](const PyCommunicator& self, bool asyncOp, double timeoutSeconds) {
            return self.collective(Request{}, CallOptions{asyncOp, timeoutSeconds, nb::none()});
          },
          nb::arg("async_op") = false, nb::arg("timeout_s") = 0.0)
      .def(
          "send_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int peer, std::uint64_t tag, SMD_CALL_PARAMETERS) {
            return nb::borrow<WorkOrNone>(
                self.sendOrReceive(true, ptr, count, dtype, peer, tag, SMD_CALL));
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag") = 0,
          SMD_CALL_ARGS)
      .def(
          "recv_ptr",
          [](const PyCommunicator& self, std::uintptr_t ptr, std::uint64_t count, int dtype,
             int peer, std::uint64_t tag, SMD_CALL_PARAMETERS) {
            return nb::borrow<WorkOrRank>(
                self.sendOrReceive(false, ptr, count, dtype, peer, tag, SMD_CALL));
          },
          nb::arg("ptr"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag") = 0,
          SMD_CALL_ARGS,
          "peer -1: whoever sends first. The blocking form returns the sender's rank.");
  module.def("is_in_use", &isInUse, nb::arg("address"), nb::arg("nbytes"),
             nb::call_guard<nb::gil_scoped_release>(),
             "Whether an operation of this process that is not complete reads or writes there.\n\n"
             "Sends and receives in which another thread blocks are not counted.");
}

}  // namespace smd::bindings
