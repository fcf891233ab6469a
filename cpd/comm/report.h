// SPDX-License-Identifier: Apache-2.0
//
// The report of a reduction: counts for each layer, and the traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// The phases of a call, in the order in which they run.
enum class Phase : std::uint8_t { handshake, exponents, exchange, fold, gather };
CPD_API std::string ToString(Phase phase);

/// The counts of one layer.
struct TensorReport {
  int shift = 0;                 ///< APS: the layer was scaled by 2^shift
  std::int64_t non_finite = 0;   ///< NaN and Inf among the contributions
  std::int64_t overflowed = 0;   ///< results that are not finite though no contribution was
  std::int64_t underflowed = 0;  ///< nonzero contributions that the cast turned into zero
  std::int64_t values = 0;       ///< contributions, of all ranks
  std::int64_t zeros = 0;        ///< contributions that are zero after the cast
  std::int64_t bytes = 0;        ///< bytes of the encoded contributions (LayerBytes)
  /// The bytes that this process copied between a device and the host for a codec that computes on
  /// the host.
  std::int64_t staged_bytes = 0;
  std::vector<int> bits{};  ///< CodecState::ChosenBits of each rank; empty: none are chosen
};

/// The traffic of one rank in one call.
struct Traffic {
  /// Rounds of the exchange of one chunk. In a round a rank sends and receives one message.
  /// Transfers of sizes do not count.
  std::int64_t steps = 0;
  std::int64_t messages = 0;                        ///< sent, all phases
  std::int64_t bytes_sent = 0, bytes_received = 0;  ///< encoded values
  /// Bytes sent other than encoded values: message headers, sizes of messages, the handshake,
  /// exponents and reports.
  std::int64_t header_bytes = 0;
};

struct ReduceReport {
  /// One report for each layer, with counts over all ranks. If the caller did not request counts,
  /// only `shift` and `staged_bytes` are set.
  std::vector<TensorReport> layers;
  Traffic traffic;
};

}  // namespace cpd
