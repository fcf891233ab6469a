// SPDX-License-Identifier: Apache-2.0
//
// The cost of an all-reduce on the wire: the numbers that Communicator returns as Traffic, from the
// same exchange run without values (study/dry_run.h); and its time in the alpha-beta model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/spec.h"

namespace cpd {

struct Cost {
  std::int64_t steps = 0;  ///< of the rank that has most: 2 (W - 1) for owner and ring, W - 1 for
                           ///< gather, 4 (k - 1) + 2 (ceil(W / k) - 1) for hierarchical; 0 where
                           ///< there are no values
  std::int64_t bytes_sent = 0;  ///< encoded values, of this rank; where not exact, at most
  std::int64_t bytes_received = 0;
  /// True if the bytes are the same for all values that CostOf assumes; else they depend on them.
  bool exact = true;
};

/// Facts on layers in addition to their sizes.
struct KnownLayers {
  std::span<const std::int64_t> rows{};  ///< as in TensorOptions
  /// Each layer's largest magnitude of all ranks, infinite or NaN where one is; empty: not known,
  /// but below 2^96.
  std::span<const float> largest{};
  std::span<const std::int64_t> numbers{};  ///< as in TensorOptions
};

/// Returns the cost of rank `rank` of `world`, for layers of these sizes, cut into chunks of
/// `chunk` values (CommOptions). If a format has no code for NaN and a sum may leave its range, all
/// values are sent in binary32. `largest` decides that; without it bytes are the larger of both.
/// Throws Error.
CPD_API Cost CostOf(const Reduce& spec, int world, int rank, std::span<const std::int64_t> sizes,
                    std::int64_t chunk, const KnownLayers& known = {});

/// Steps of an all-reduce of equal bytes and equal ways, over hosts.
struct Round {
  std::int64_t steps = 0;
  std::int64_t bytes = 0;   ///< of the longest message of each step
  std::int64_t across = 0;  ///< messages of a step that leave one host, or reach it, at most
  std::int64_t within = 0;  ///< messages of a step that stay in one host, at most
};

/// Returns the steps of TimeOf, with rank r in host r / per_host, for a model of two levels. Throws
/// Error.
CPD_API std::vector<Round> RoundsOf(const Reduce& spec, int world,
                                    std::span<const std::int64_t> sizes, std::int64_t per_host,
                                    const KnownLayers& known = {});

/// Returns the steps before the steps of RoundsOf in which ranks agree on scales. For each layer's
/// largest magnitude (with APS, and for formats without a code for NaN) they send 4 bytes a layer
/// and 4 more; for a codec's shared scale, 4 bytes a layer. In ceil(log2(world)) steps each rank
/// sends all of them to the rank 1, 2, 4, … places after it. There are no steps if nothing is
/// needed. Throws Error.
CPD_API std::vector<Round> AgreementOf(const Reduce& spec, int world,
                                       std::span<const std::int64_t> sizes, std::int64_t per_host,
                                       const KnownLayers& known = {});

/// Returns the time in seconds, in the alpha-beta model: the steps of CostOf one after the other,
/// all ranks at once, in one chunk. Each step takes `alpha` and `beta` times the bytes of its
/// longest message. It is an upper bound if CostOf's bytes are. Throws Error.
CPD_API double TimeOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                      double alpha, double beta, const KnownLayers& known = {});

}  // namespace cpd
