// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Why a connection ended.
#pragma once

#include <string>

#include "common/network.h"

namespace smd::transport::tcp {

struct LinkEnd {
  bool hasLeft = false;  // the peer said goodbye
  std::string text;      // for Error(kPeerLost), which also names the operation and the rank
};

inline LinkEnd leftInGoodOrder(const std::string& endpoint) {
  return {true, endpoint + " left: it closed its communicator in good order"};
}

// Its error is on its way as well, over the other connection; this shows where that is cut.
inline LinkEnd gaveUp(const std::string& endpoint) {
  return {false, endpoint + " gave the group up because of an error that did not get through"};
}

inline LinkEnd unanswered(const std::string& endpoint) {
  return {false, endpoint +
                     " has not answered for some 10 s: its host is down, or the network to it is "
                     "cut"};
}

inline LinkEnd unserved(const std::string& endpoint, const std::string& reason) {
  return {false, endpoint + " cannot be served by this rank any more (" + reason + ")"};
}

inline LinkEnd givenBackTooEarly(const std::string& endpoint) {
  return {false, endpoint +
                     " was left in the middle of a message (the memory that this rank sends was "
                     "given back before the operation was complete; keep it until wait() returns)"};
}

// `reason` may be empty.
inline LinkEnd closedUnexpectedly(const std::string& endpoint, const std::string& reason) {
  return {false, endpoint + " closed the connection" + (reason.empty() ? "" : " (" + reason + ")")};
}

}  // namespace smd::transport::tcp
