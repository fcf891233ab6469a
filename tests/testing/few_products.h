// SPDX-License-Identifier: Apache-2.0
//
// Accumulators and operands for tests of sums of no products, and of fewer products than a matrix
// unit adds at once (its block).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpd/spec/presets.h"
#include "tests/testing/gemm.h"

namespace cpd::testing {

/// Returns accumulators of every ordered scheme in several formats. Also returns matrix units whose
/// result has another format than their sum, with and without promotion (adding the unit's sums
/// outside of the unit after every 8 products).
inline std::vector<Accumulator> few_product_sums() {
  std::vector<Accumulator> all;
  for (const char* name : {"e4m3", "e5m2", "e4m3fn", "e8m0", "e2m1", "e5m2:nosub:unsigned"}) {
    const Format format = ParseFormat(name);
    for (const Scheme scheme :
         {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
      Accumulator a{format, scheme};
      if (scheme == Scheme::chunked) a.chunk = 2;
      all.push_back(a);
      a.exact_products = true;
      all.push_back(a);
    }
    for (const char* sum : {"fp32", "e8m13", "fp16"}) {
      for (const std::int64_t promote : {0, 8}) {
        Accumulator a{format, Scheme::block_fma};
        a.unit = BlockFma{ParseFormat("e4m3"), ParseFormat("e5m2"), 4, 13, true, -139};
        a.unit->sum = ParseFormat(sum);
        a.unit->promote = promote;
        if (promote == 8) a.unit->rounding = Rounding::nearest_even;
        all.push_back(a);
      }
    }
  }
  for (const NamedSpec& preset : Presets()) {
    all.push_back(Preset(preset.name));
    all.back().format = ParseFormat("bf16");
  }
  return all;
}

inline constexpr std::array kFewModes = {Rounding::nearest_even, Rounding::down,
                                         Rounding::stochastic};

/// Returns a number that the unit's operand format can represent. Every element of b has this
/// value.
inline float few_product_factor(const Accumulator& accumulator) {
  const bool is_short = accumulator.unit && accumulator.unit->b == ParseFormat("e2m1");
  return is_short ? -0.5f : -0.25f;
}

/// Returns the addends: values that the formats of the sums cannot represent, ties, zeros of both
/// signs, Inf and NaN.
inline std::vector<float> few_product_addends() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  return {
      4124.0f, -0.0f, 1.0f + 0x1p-20f, kInf,      -kInf, std::numeric_limits<float>::quiet_NaN(),
      1.0625f, 3.5f,  -1.0f,           0x1p-130f, 3e38f, 17.0f};
}

}  // namespace cpd::testing
