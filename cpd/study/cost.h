// SPDX-License-Identifier: Apache-2.0
//
// What an all-reduce costs on the wire: the figures that Communicator returns as Traffic, of the
// same exchange run without values (study/dry_run.h); and the time that the alpha-beta model gives
// them.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/comm/spec.h"

namespace cpd {

struct Cost {
  std::int64_t steps = 0;  ///< on the rank that has most: 2 (W - 1) for owner and ring, W - 1 for
                           ///< gather, 4 (k - 1) + 2 (ceil(W / k) - 1) for hierarchical; 0 where
                           ///< there are no values
  std::int64_t bytes_sent = 0;  ///< encoded values, of this rank; where not exact, at most
  std::int64_t bytes_received = 0;
  /// Whether bytes are those of any values as CostOf takes them; else they depend on the values.
  bool exact = true;
};

/// What is known of layers besides their sizes.
struct KnownLayers {
  std::span<const std::int64_t> rows{};  ///< as LayerOptions has them
  /// Each layer's largest magnitude of all ranks, infinite or NaN where one is; empty: not known,
  /// but below 2^96.
  std::span<const float> largest{};
};

/// Of rank `rank` of `world`, for layers of the given sizes, cut into chunks of `chunk` values as
/// CommOptions says. Where a format has no code for NaN and a sum may leave its range, all values
/// travel in binary32: `largest` decides that; without it bytes are the most of both. Throws Error.
CPD_API Cost CostOf(const ReduceSpec& spec, int world, int rank,
                    std::span<const std::int64_t> sizes, std::int64_t chunk,
                    const KnownLayers& known = {});

/// Seconds, in the alpha-beta model: the steps of CostOf one after the other, all ranks at once,
/// each `alpha` and `beta` a byte of its longest message; in one chunk; at most where CostOf is.
/// Throws Error.
CPD_API double TimeOf(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes,
                      double alpha, double beta, const KnownLayers& known = {});

}  // namespace cpd
