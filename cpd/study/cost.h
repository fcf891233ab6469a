// SPDX-License-Identifier: Apache-2.0
//
// Estimates the cost of an all-reduce without communication. The bytes and steps are the numbers
// that Communicator returns as Traffic: the same exchange runs without values (study/dry_run.h).
// The time follows from the alpha-beta model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/spec.h"

namespace cpd {

struct Cost {
  /// The number of steps of the rank with the most steps: 2 (W - 1) for the exchanges owner and
  /// ring, W - 1 for gather, and 4 (k - 1) + 2 (ceil(W / k) - 1) for hierarchical, with W ranks in
  /// groups of k. 0 if there are no values.
  std::int64_t steps = 0;
  std::int64_t bytes_sent = 0;  ///< by this rank; an upper bound unless exact
  std::int64_t bytes_received = 0;
  /// True if bytes_sent and bytes_received are the same for all values that CostOf assumes.
  bool exact = true;
};

/// Facts about layers that the caller may know in addition to their sizes.
struct KnownLayers {
  std::span<const std::int64_t> rows{};  ///< as in TensorOptions
  /// The largest magnitude of each layer over all ranks. If a layer has an infinity or NaN, its
  /// entry is infinite or NaN. Empty: magnitudes are unknown, but assumed to be below 2^96.
  std::span<const float> largest{};
  std::span<const std::int64_t> numbers{};  ///< as in TensorOptions
};

/// Returns the cost of rank `rank` of `world` ranks. `sizes` are the numbers of values of the
/// layers, which are sent in chunks of `chunk` values (CommOptions). If a format has no code for
/// NaN and a sum may leave the format's range, all values are sent in binary32. Whether a sum may
/// leave the range follows from `known.largest`. If `known.largest` is empty, the cost has the
/// larger number of bytes of the two cases. Throws Error for invalid arguments.
CPD_API Cost CostOf(const Reduce& spec, int world, int rank, std::span<const std::int64_t> sizes,
                    std::int64_t chunk, const KnownLayers& known = {});

/// A number of steps of an all-reduce over hosts. All these steps have equal message sizes and
/// equal message counts.
struct Round {
  std::int64_t steps = 0;
  std::int64_t bytes = 0;   ///< of the longest message of each step
  std::int64_t across = 0;  ///< most messages of a step that leave or reach one host
  std::int64_t within = 0;  ///< most messages of a step that stay in one host
};

/// Returns the steps of an all-reduce and their message counts, for time models that distinguish
/// messages within a host from messages between hosts. TimeOf counts the same steps. Rank r is on
/// host r / per_host. Throws Error for invalid arguments.
CPD_API std::vector<Round> RoundsOf(const Reduce& spec, int world,
                                    std::span<const std::int64_t> sizes, std::int64_t per_host,
                                    const KnownLayers& known = {});

/// Returns the steps in which ranks agree on scales, before the steps that RoundsOf returns. With
/// APS, and for formats without a code for NaN, ranks exchange each layer's largest magnitude:
/// messages of 4 * layers + 4 bytes. For a codec's shared scale, messages have 4 * layers bytes.
/// The ranks agree in ceil(log2(world)) steps. Each rank sends such a message to the rank 1 later
/// in the first step, 2 later in the second step, then 4 later, …. The result is empty if ranks
/// need no agreement. Throws Error for invalid arguments.
CPD_API std::vector<Round> AgreementOf(const Reduce& spec, int world,
                                       std::span<const std::int64_t> sizes, std::int64_t per_host,
                                       const KnownLayers& known = {});

/// Returns the time of an all-reduce in seconds, in the alpha-beta model. The steps of CostOf run
/// one after the other, all ranks at once, in one chunk. Each step takes alpha + beta * (bytes of
/// its longest message). The time is an upper bound if CostOf's bytes are an upper bound. Throws
/// Error for invalid arguments.
CPD_API double TimeOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                      double alpha, double beta, const KnownLayers& known = {});

}  // namespace cpd
