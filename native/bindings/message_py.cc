// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages as Python sees them: a header as bytes, and the body through the buffer protocol, so
// that NumPy and torch make their arrays and tensors where it lies.
#include "bindings/message_py.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/communicator_methods.h"
#include "bindings/duration.h"
#include "bindings/request_py.h"

namespace smd::bindings {
namespace {

// To copy more takes longer than to release the GIL and, with luck, to get it back at once.
constexpr std::uint64_t kBriefBytes = std::uint64_t{64} << 10;

int getBuffer(PyObject* self, Py_buffer* view, int flags) {
  const std::span<std::byte> body = nb::inst_ptr<PyMessage>(self)->message().body();
  return PyBuffer_FillInfo(view, self, body.data(), static_cast<Py_ssize_t>(body.size()), 0, flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&getBuffer)}, {0, nullptr}};

class MessageOrNone : public nb::object {
  NB_OBJECT_DEFAULT(MessageOrNone, nb::object, "Message | None", isAnyObject)
};

// (address, nbytes) of each.
using PySegments = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;

TimePoint endOf(double timeoutSeconds) {
  if (timeoutSeconds < 0) return TimePoint::max();
  if (!(timeoutSeconds > 0)) return TimePoint::min();
  return endAfter(timeoutSeconds);
}

// Releases the GIL if the copies take longer than that costs.
void postMessage(engine::Communicator& communicator, int peer, const nb::bytes& header,
                 const PySegments& segments) {
  const std::span headerBytes(reinterpret_cast<const std::byte*>(header.c_str()), header.size());
  std::vector<engine::Segment> parts;
  parts.reserve(segments.size());
  for (const auto& [address, bytes] : segments) parts.push_back({input(address), bytes});
  std::optional<nb::gil_scoped_release> release;
  if (engine::bodyBytes(parts) + header.size() > kBriefBytes) release.emplace();
  communicator.postMessage(peer, headerBytes, parts);
}

// A PyMessage or None. Negative: without a limit. Holds the GIL only to look and to return.
nb::object nextMessage(engine::Communicator& communicator, double timeoutSeconds) {
  std::optional<engine::Message> message;
  {
    nb::gil_scoped_release release;
    message = communicator.nextMessage(endOf(timeoutSeconds));
  }
  if (!message) return nb::none();
  return nb::cast(PyMessage(std::move(*message)));
}

}  // namespace

void addMessages(CommunicatorClass& communicator) {
  communicator
      .def(
          "post_message",
          [](const PyCommunicator& self, int peer, const nb::bytes& header,
             const PySegments& segments) {
            self.guarded([&] { postMessage(self.engine(), peer, header, segments); });
          },
          nb::arg("dest"), nb::arg("header"), nb::arg("segments"),
          "Sends a message of unknown size: ``header``, and a body of ``segments``, (address, "
          "nbytes)\neach. Each segment begins at a multiple of 64 bytes in the body.\n\n"
          "Never waits for the peer: all has been copied, once, when it returns. Any thread. "
          "Raises the\ngroup's error, that the peer has gone, or that the group is closed.")
      .def(
          "next_message",
          [](const PyCommunicator& self, double timeoutSeconds) {
            return nb::borrow<MessageOrNone>(
                self.guarded([&] { return nextMessage(self.engine(), timeoutSeconds); }));
          },
          nb::arg("timeout_s"),
          "The oldest message that has arrived whole, from any peer; those of one peer come in "
          "the order\nof their posting. None if none has come in ``timeout_s`` seconds (0: only "
          "looks, negative:\nno limit), which harms nothing.\n\n"
          "One thread at a time. Raises the group's error, and PeerLostError once a peer has died "
          "or\nleft the group; what had arrived before is delivered first. The communicator's "
          "timeout_s and\nstall_s do not apply.");
}

void registerMessage(nb::module_& module) {
  nb::class_<PyMessage>(
      module, "Message", nb::type_slots(slots),
      "A message that has arrived: its header, and its body through the buffer protocol, "
      "writable.\n\n"
      "For torch.frombuffer() and numpy.frombuffer(), which copy nothing; the memory lives as "
      "long\n"
      "as anything made from it, also after the communicators of both ranks are closed. The body\n"
      "begins at a multiple of 64 bytes, and so does each segment in it: behind the one before, "
      "at\nthe first such place.")
      .def_prop_ro(
          "source", [](const PyMessage& self) { return self.message().source(); },
          "Rank that posted it.")
      .def_prop_ro(
          "header",
          [](const PyMessage& self) {
            const std::span<const std::byte> header = self.message().header();
            return nb::bytes(reinterpret_cast<const char*>(header.data()), header.size());
          },
          "A copy of the header.")
      .def_prop_ro(
          "nbytes", [](const PyMessage& self) { return self.message().body().size(); },
          "Bytes of the body.");
}

}  // namespace smd::bindings
