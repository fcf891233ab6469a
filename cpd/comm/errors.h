// SPDX-License-Identifier: Apache-2.0
//
// Errors between ranks. An invalid argument throws Error (spec/error.h).
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpd/export.h"
#include "cpd/spec/error.h"

namespace cpd {

/// A failure that the transport reported. `peer` is the rank that caused the failure, or -1 if that
/// rank is unknown.
class CPD_API TransportError : public std::runtime_error {
 public:
  TransportError(const std::string& what, int peer_rank)
      : std::runtime_error(what), peer(peer_rank) {}
  int peer;
};

/// Names ranks that did not answer within the timeout. The group of ranks is broken from then on,
/// or was never made. A Subgroup of the other ranks works.
class CPD_API RankLost : public std::runtime_error {
 public:
  RankLost(const std::string& what, std::vector<int> lost_ranks)
      : std::runtime_error(what), ranks(std::move(lost_ranks)) {}
  std::vector<int> ranks;
};
/// Returns a name such as `rank 2` or `ranks 0, 2`, for error texts.
CPD_API std::string NameRanks(std::span<const int> ranks);

/// Reports that the ranks were about to make different calls. The message is the same on all ranks.
/// No values have been sent.
class CPD_API Mismatch : public Error {
 public:
  /// Stores the whole `message`, which Error's own constructor would shorten. The rank that reports
  /// invalid arguments has already limited the length of its text.
  explicit Mismatch(const std::string& message) : Error(AsItIs(), message) {}
};

/// Reports a received message whose header, length or checksum is wrong.
class CPD_API Corrupt : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace cpd
