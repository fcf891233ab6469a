// SPDX-License-Identifier: Apache-2.0
//
// The path `half_lanes`: the steps of `veltkamp` in lanes of 16 bits, twice as many at a time, in
// formats of at most 4 (fp16) or 3 (bf16) significant bits. The bounds are veltkamp's. Its loop is
// kernels/cuda/gemm_halves.h. (On a CPU, AVX-512 FP16's lanes were 1.2 times as fast as binary32's:
// benchmarks/GEMM.md.)
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"

namespace cpd {

constexpr Format format_of(Half half) {
  return half == Half::bf16 ? Format{.exp = 8, .man = 7, .bias = 127}
                            : Format{.exp = 5, .man = 10, .bias = 15};
}

struct HalfLanes {
  /// The lanes in which a sequential sum by `veltkamp` is exact, up to the plan's limits: a sum
  /// rounded to its 2p + 2 bits may be rounded again (Figueroa 1995), it holds the magnets, and
  /// what it has no normal numbers for is at most half a product's least spacing.
  static constexpr Half lanes_of(const FastPlan& plan, const ProductsAsked& asked) {
    const bool fits = plan.path == FastPath::veltkamp && asked.scheme == Scheme::sequential;
    if (!fits || plan.guarded) return Half::none;
    for (const Half half : {Half::fp16, Half::bf16}) {
      const Format lanes = format_of(half);
      const auto has_magnets = [&](double most, int man) {
        return most * (1 + Format::power_of_two(lanes.man - man)) <= lanes.max();
      };
      if (2 * asked.sum.precision() + 2 <= lanes.precision() &&
          asked.sum.min_quantum_exponent() >= lanes.min_quantum_exponent() &&
          asked.product.min_quantum_exponent() > lanes.emin() &&
          has_magnets(plan.product_limit, asked.product.man) &&
          has_magnets(plan.limit, asked.sum.man)) {
        return half;
      }
    }
    return Half::none;
  }
};

}  // namespace cpd
