// SPDX-License-Identifier: Apache-2.0
//
// The fast path `half_lanes`: does the steps of the path `veltkamp` in lanes of 16 bits. An
// instruction then processes twice as many numbers. The formats have at most 4 (fp16 lanes) or 3
// (bf16 lanes) significant bits, and operands at most 5 or 3. Values of fp16 lanes are from 2^-13
// to about 500. So fp16 lanes serve (4,3), (3,2) and (2,1), and bf16 lanes serve (5,2). Operands
// and sums must be within the bounds of the path `veltkamp`. Products and sums are rounded to
// nearest-even, in a sequential order. The loop is in kernels/cuda/gemm_halves.h. (On a CPU, the
// fp16 lanes of AVX-512 were only 1.2 times as fast as binary32 lanes: benchmarks/GEMM.md.)
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"

namespace cpd {

constexpr Format format_of(Half half) {
  return half == Half::bf16 ? Format{.exp = 8, .man = 7, .bias = 127}
                            : Format{.exp = 5, .man = 10, .bias = 15};
}

struct HalfLanes {
  /// Returns the type of 16-bit lanes in which the path `veltkamp` computes a sequential sum
  /// exactly, within the bounds of FastPlan. Such lanes have at least 2p + 2 significant bits. A
  /// sum of two numbers of p bits, rounded to the lanes' bits and then to p bits, is therefore
  /// rounded as if once (Figueroa 1995). Every magnet (a number whose addition rounds) is finite.
  /// The lanes' least normal number is at most half the products' least spacing.
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
