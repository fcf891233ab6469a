// SPDX-License-Identifier: Apache-2.0
//
// Tests that Gemm on every backend gives the oracle's sums of matrix units.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cpd/spec/presets.h"
#include "tests/testing/bits.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"

namespace cpd {
namespace {

using testing::gemm_matches;
using testing::kInf;
using testing::Tensor;
using testing::Turns;
using testing::Values;

std::vector<Accumulator> units() {
  std::vector<Accumulator> all;
  for (const NamedSpec& preset : Presets()) all.push_back(Preset(preset.name));
  const auto push = [&](const char* a, const char* b, int block, int f, bool aligns, int least,
                        const char* sum, Rounding rounding, std::int64_t promote) {
    Accumulator accumulator;
    accumulator.scheme = Scheme::block_fma;
    accumulator.unit = BlockFma{ParseFormat(a), ParseFormat(b),   block,    f,      aligns,
                                least,          ParseFormat(sum), rounding, promote};
    all.push_back(accumulator);
  };
  push("fp16", "fp16", 4, 23, true, -133, "fp32", Rounding::toward_zero, 0);
  push("fp16", "fp16", 4, 23, true, -133, "fp32", Rounding::nearest_even, 0);
  push("e4m3fn", "e5m2", 32, 13, true, -139, "e8m13", Rounding::toward_zero, 0);
  push("e4m3fn", "e5m2", 32, 13, true, -139, "e8m13", Rounding::toward_zero, 128);
  push("e4m3", "e4m3", 3, 1, true, -20, "fp32", Rounding::toward_zero, 6);
  push("e4m3", "e4m3", 64, 30, true, -133, "fp32", Rounding::nearest_even, 0);
  push("bf16", "bf16", 8, 24, true, -132, "fp32", Rounding::toward_zero, 0);
  push("bf16", "bf16", 16, 25, false, -133, "fp32", Rounding::toward_zero, 0);
  push("fp16", "fp16", 1, 10, false, -133, "fp16", Rounding::nearest_even, 0);
  push("fp16", "fp16", 16, 25, false, -133, "e6m9", Rounding::nearest_even, 32);
  push("e5m2", "e5m2", 16, 7, true, 2, "e5m7", Rounding::toward_zero, 0);
  for (const char* name : {"ada-fp8", "b200-fp8", "b200-tcgen05-fp16"}) {
    all.push_back(Preset(name, ParseFormat("fp16")));
  }
  for (const char* text :
       {"fp32 block_fma a=e4m3fn b=e5m2 block=4 group=8",
        "fp32 block_fma a=e4m3fn b=e5m2 block=4 group=8 fraction_bits=3",
        "fp32 block_fma a=e4m3fn b=e5m2 block=16 group=48 stride=8 take=1 sum=fp16",
        "fp16 block_fma a=e4m3fn b=e5m2 block=16 group=32 promote=32 sum=fp16 "
        "sum_rounding=nearest_even min_exponent=-21",
        "fp32 block_fma a=bf16 b=fp16 block=3 group=12 stride=6 take=3 promote=24",
        "fp32 block_fma a=fp32 b=fp32 block=16 group=48 stride=8 take=1 adder=exact promote=48",
        "fp32 block_fma a=fp32 b=fp32 block=32 fraction_bits=30 adder=two_steps "
        "sum_rounding=nearest_even group=64"}) {
    all.push_back(ParseAccumulator(text));
  }
  return all;
}

/// Returns values of the unit's operand format. `kind` chooses values near 1, values of all sizes,
/// or values with Inf and NaN among them.
std::vector<float> unit_operands(const Format& format, int kind, std::size_t n,
                                 std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const reference::Spec spec = reference::spec_of(format);
  if (kind == 0) {
    std::vector<float> values = testing::numbers_around(0, 3, format.man + 1, n, generator);
    for (float& x : values) x = reference::cast(spec, x);  // a few are too small for e2m1
    return values;
  }
  std::vector<float> values(n);
  for (float& x : values) {
    const std::uint64_t magnitude =
        generator() % (kind == 2 ? spec.magnitudes() : spec.max_code() + 1);
    const std::uint64_t sign = generator() % 2 * spec.magnitudes();
    x = reference::decode(spec, magnitude + sign);
  }
  return values;
}

TEST(GemmBlockFma, EveryUnit) {
  Turns turns;
  int failures = 0;
  std::uint64_t seed = 0;
  for (Accumulator accumulator : units()) {
    const BlockFma& unit = accumulator.unit.value();
    for (const int kind : {0, 1, 2}) {
      for (const std::int64_t depth : {1, 3, 4, 15, 16, 17, 33, 64, 127, 129, 300}) {
        if ((kind == 2 && depth > 20) || !turns.one_of(depth > 100 ? 4 : 1)) continue;
        const auto k = static_cast<std::size_t>(depth);
        const Tensor a({9, depth}, unit_operands(unit.a, kind, 9 * k, ++seed));
        const Tensor b({depth, 33}, unit_operands(unit.b, kind, 33 * k, ++seed));
        const Tensor c({9, 33}, unit_operands(unit.sum, kind, 9 * 33, ++seed));
        const auto equal = gemm_matches({a, b, seed % 2 == 0 ? &c : nullptr}, accumulator);
        EXPECT_TRUE(equal) << "values " << kind;
        if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
}

TEST(GemmBlockFma, WithoutTerms) {
  for (const Accumulator& accumulator : units()) {
    const Tensor a({2, 0}, {});
    const Tensor b({0, 3}, {});
    const Tensor c({3}, {-0.0f, 1.0f + 0x1p-20f, kInf});
    ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator));
    ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator));
  }
}

}  // namespace
}  // namespace cpd
