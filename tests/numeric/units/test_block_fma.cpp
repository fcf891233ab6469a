// SPDX-License-Identifier: Apache-2.0
//
// Tests the rule of matrix units. Every backend must give the results of integer arithmetic and of
// reference.h, which share no code with the kernels, and the results of cases worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/numeric/units/block_fma.h"
#include "cpd/ops/checks.h"
#include "cpd/oracle/reference_gemm.h"
#include "cpd/spec/presets.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Exact;
using testing::bits_of;
using testing::from_bits;
using testing::kInf;
using testing::kNan;

const BlockFma& unit_of(const Accumulator& accumulator) {
  if (!accumulator.unit) throw std::logic_error("no unit");
  return *accumulator.unit;
}

// --- the rule in integers ------------------------------------------------------------------------

struct Number {
  std::int64_t significand = 0;  // of 24 bits
  int exponent = 0;              // of its last bit
};

Number number(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return {static_cast<std::int64_t>(std::ldexp(fraction, 24)), exponent - 24};
}

int exponent_in(const Format& format, float x) { return std::max(std::ilogb(x), format.emin()); }

// Returns significand * 2^exponent as a multiple of 2^unit, cut toward zero.
std::int64_t cut(std::int64_t significand, int exponent, int unit) {
  if (significand == 0) return 0;
  if (exponent >= unit) return significand << (exponent - unit);
  const int drop = unit - exponent;
  const std::int64_t magnitude = drop > 62 ? 0 : std::abs(significand) >> drop;
  return significand < 0 ? -magnitude : magnitude;
}

Exact infinite_sum(std::span<const float> a, std::span<const float> b, const Exact& sum) {
  Exact total = sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Exact product = reference::multiply(reference::exact(a[i]), reference::exact(b[i]));
    if (product.kind != Exact::Kind::finite) total = reference::add(total, product);
  }
  return total;
}

// Returns the exponent to which a block's dot products are aligned if all scales are 1:
// unit.min_exponent or, if a dot product is not 0, the greater of unit.min_exponent and 0.
int dots_exponent(const BlockFma& unit, std::span<const double> dots) {
  const bool counts = std::ranges::any_of(dots, [](double dot) { return dot != 0; });
  return counts ? std::max(unit.min_exponent, 0) : unit.min_exponent;
}

std::vector<double> dots_of(const BlockFma& unit, std::span<const float> a,
                            std::span<const float> b) {
  std::vector<double> dots((a.size() + static_cast<std::size_t>(unit.dot) - 1) /
                           static_cast<std::size_t>(unit.dot));
  for (std::size_t i = 0; i < a.size(); ++i) {
    dots[i / static_cast<std::size_t>(unit.dot)] += double{a[i]} * double{b[i]};
  }
  return dots;
}

// Returns the format's largest number plus one unit in the last place.
Exact beyond(const Format& format) {
  const reference::Spec spec = reference::spec_of(format);
  const Exact last = reference::exact_finite(false, 1, format.emax() - format.man);
  return reference::add(reference::grid_value(spec, spec.max_code()), last);
}

// Returns the matrix unit's sum after one more block of products.
Exact add_block(const BlockFma& unit, std::span<const float> a, std::span<const float> b,
                const Exact& sum) {
  if (unit.adder != Adder::aligned) return reference::block_sum(unit, {a, b}, sum);
  const reference::Spec spec = reference::spec_of(unit.sum);
  const reference::Options into_sum{.rounding = unit.rounding};
  const Exact infinite = infinite_sum(a, b, sum);
  if (infinite.kind != Exact::Kind::finite) return reference::round_exact(spec, infinite, into_sum);
  const float addend = reference::to_float(sum);
  const std::vector<double> dots = unit.dot > 1 ? dots_of(unit, a, b) : std::vector<double>{};
  int most = dots_exponent(unit, dots);
  for (std::size_t i = 0; i < a.size() && unit.dot == 1; ++i) {
    if (a[i] == 0 || b[i] == 0) continue;
    most = std::max(most, exponent_in(unit.a, a[i]) + exponent_in(unit.b, b[i]));
  }
  if (unit.aligns_addend && addend != 0) most = std::max(most, exponent_in(unit.sum, addend));
  const int last = most - unit.fraction_bits;
  std::int64_t total = 0;
  for (const double dot : dots) total += static_cast<std::int64_t>(std::ldexp(dot, -last));
  for (std::size_t i = 0; i < a.size() && unit.dot == 1; ++i) {
    const Number x = number(a[i]);
    const Number y = number(b[i]);
    total += cut(x.significand * y.significand, x.exponent + y.exponent, last);
  }
  if (unit.aligns_addend) total += cut(number(addend).significand, number(addend).exponent, last);
  const Exact units =
      reference::exact_finite(total < 0, static_cast<std::uint64_t>(std::abs(total)), last);
  const Exact exact = unit.aligns_addend ? units : reference::add(units, sum);
  if (unit.sum.has_inf() && reference::compare_magnitude(exact, beyond(unit.sum)) >= 0) {
    return reference::exact_infinity(exact.negative);
  }
  const Exact rounded = reference::round_exact(spec, exact, into_sum);
  return rounded.is_zero() ? reference::exact_finite(false, 0, 0) : rounded;
}

// Computes element `index` of a product by the rule of matrix units (BlockFma), in integers.
float model(const Accumulator& accumulator, std::span<const float> a, std::span<const float> b,
            float c, std::uint64_t index) {
  const BlockFma& unit = unit_of(accumulator);
  const reference::Spec format = reference::spec_of(accumulator.format);
  reference::Draws draws(accumulator.rounding, testing::kKey, index);
  const bool promotes = unit.promote > 0;
  Exact result = reference::exact(c);  // given rounded
  Exact sum = promotes ? Exact{} : result;
  for (std::size_t k = 0; k < a.size();) {
    const auto block = static_cast<std::size_t>(unit.block);
    const std::size_t count = std::min(block, a.size() - k);
    sum = add_block(unit, a.subspan(k, count), b.subspan(k, count), sum);
    k += count;
    if (!promotes) continue;
    if (k % static_cast<std::size_t>(unit.promote) != 0 && k != a.size()) continue;
    const reference::Options o = draws.next();
    result = reference::round_exact(format, reference::add_for(o, result, sum), o);
    sum = Exact{};
  }
  if (promotes) return reference::to_float(result);
  return reference::to_float(reference::round_exact(format, sum, draws.next()));
}

// --- the kernels ---------------------------------------------------------------------------------

struct Product {
  std::size_t rows = 0, columns = 0, depth = 0;
  std::vector<float> a, b, c;  // a by rows, b by columns, depth values each; c by rows

  std::span<const float> row(std::size_t i) const { return std::span(a).subspan(i * depth, depth); }
  std::span<const float> column(std::size_t j) const {
    return std::span(b).subspan(j * depth, depth);
  }
};

// Packs `count` values of each matrix row (or column) from first_k on, `width` lines to a panel.
std::vector<float> packed(const std::vector<float>& x, std::size_t lines, std::size_t depth,
                          std::size_t first_k, std::size_t count, std::size_t width) {
  const std::size_t panels = (lines + width - 1) / width;
  std::vector<float> out(panels * width * count);
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t k = 0; k < count; ++k) {
      out[((line / width) * count + k) * width + line % width] = x[line * depth + first_k + k];
    }
  }
  return out;
}

std::size_t round_up(std::size_t x, int to) {
  const auto step = static_cast<std::size_t>(to);
  return (x + step - 1) / step * step;
}

std::vector<float> run(const KernelTable& table, const Accumulator& accumulator,
                       const Product& product, std::size_t step, std::uint64_t index) {
  const BlockFmaPlan plan = make_block_fma_plan(accumulator, testing::kKey);
  const std::size_t rows = round_up(product.rows, table.gemm_rows);
  const std::size_t columns = round_up(product.columns, table.gemm_columns);
  std::vector<float> state(rows * columns * static_cast<std::size_t>(plan.planes));
  for (std::size_t i = 0; i < product.rows; ++i) {
    std::copy_n(&product.c[i * product.columns], product.columns, &state[i * columns]);
  }
  for (std::size_t k = 0; k < product.depth; k += step) {
    const std::size_t count = std::min(step, product.depth - k);
    const auto a = packed(product.a, product.rows, product.depth, k, count,
                          static_cast<std::size_t>(table.gemm_rows));
    const auto b = packed(product.b, product.columns, product.depth, k, count,
                          static_cast<std::size_t>(table.gemm_columns));
    GemmBlock block;
    block.rows = static_cast<std::int64_t>(product.rows);
    block.columns = static_cast<std::int64_t>(product.columns);
    block.first_k = static_cast<std::int64_t>(k);
    block.count = static_cast<std::int64_t>(count);
    block.last = k + count == product.depth;
    block.a = a.data();
    block.b = b.data();
    block.state = state.data();
    block.plane = static_cast<std::int64_t>(rows * columns);
    block.state_columns = static_cast<std::int64_t>(columns);
    block.index = index;
    block.index_row = product.columns;
    table.block_fma(plan, block);
  }
  std::vector<float> out(product.rows * product.columns);
  for (std::size_t i = 0; i < product.rows; ++i) {
    std::copy_n(&state[i * columns], product.columns, &out[i * product.columns]);
  }
  return out;
}

// Compares every backend with model(). The kernel takes all values of k in one call, and then three
// blocks of k in each call. Returns false on failure.
bool check(const Accumulator& accumulator, const Product& product) {
  constexpr std::uint64_t kIndex = (std::uint64_t{1} << 32) - 21;  // past it in mid-row
  std::vector<float> expected;
  for (std::size_t i = 0; i < product.rows; ++i) {
    for (std::size_t j = 0; j < product.columns; ++j) {
      const std::size_t element = i * product.columns + j;
      expected.push_back(model(accumulator, product.row(i), product.column(j), product.c[element],
                               kIndex + element));
    }
  }
  bool good = true;
  const auto block = static_cast<std::size_t>(unit_of(accumulator).block);
  for (const KernelTable* table : AvailableKernels()) {
    for (const std::size_t step : {product.depth, 3 * block}) {
      const auto got = run(*table, accumulator, product, step, kIndex);
      const auto equal =
          testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
      EXPECT_TRUE(equal) << table->name << ", k in steps of " << step << ", depth " << product.depth
                         << ": " << ToString(accumulator);
      good = good && equal;
    }
  }
  return good;
}

// Returns the dot product of a and b plus c. Expects that all backends equal the integer rule.
float dot(const Accumulator& accumulator, const std::vector<float>& a, const std::vector<float>& b,
          float c = 0) {
  const Product product{1, 1, a.size(), a, b, {c}};
  EXPECT_TRUE(check(accumulator, product));
  return run(*AvailableKernels().back(), accumulator, product, product.depth, 0)[0];
}

Accumulator custom(const char* text) { return ParseAccumulator(text); }

// --- random products -----------------------------------------------------------------------------

class Source {
 public:
  explicit Source(std::uint64_t seed) : generator_(seed) {}

  int between(int low, int high) {
    return low + static_cast<int>(generator_() % static_cast<std::uint64_t>(high - low + 1));
  }
  template <class T>
  T one_of(const std::vector<T>& all) {
    return all[generator_() % all.size()];
  }

  // Returns a value of the format whose exponent is near `centre`. Some values are zero or special.
  float value(const Format& format, int centre, int spread, bool specials) {
    const int kind = between(0, 99);
    if (kind < 4) return kind % 2 == 0 ? 0.0F : -0.0F;
    if (specials && kind == 4) return one_of<float>({kInf, -kInf, kNan});
    const double x =
        std::ldexp(1 + between(0, (1 << 23) - 1) * 0x1p-23, centre + between(-spread, spread)) *
        (between(0, 1) == 0 ? 1 : -1);
    return reference::cast(reference::spec_of(format), static_cast<float>(x),
                           {.rounding = Rounding::nearest_even, .overflow = Overflow::saturate});
  }

 private:
  std::mt19937_64 generator_;
};

Product random_product(Source& source, const Accumulator& accumulator, int depth) {
  const BlockFma& unit = unit_of(accumulator);
  const bool specials = source.between(0, 9) == 0;
  const auto centre = [&](const Format& f) {
    return source.between(0, 2) == 0 ? source.between(f.emin() - 3, f.emax()) : 0;
  };
  const int spread = source.one_of<int>({1, 6, 40});
  Product p{static_cast<std::size_t>(source.between(1, 9)),
            static_cast<std::size_t>(source.between(1, 35)),
            static_cast<std::size_t>(depth),
            {},
            {},
            {}};
  const int centre_a = centre(unit.a);
  const int centre_b = centre(unit.b);
  for (std::size_t i = 0; i < p.rows * p.depth; ++i) {
    p.a.push_back(source.value(unit.a, centre_a, spread, specials));
  }
  for (std::size_t i = 0; i < p.columns * p.depth; ++i) {
    p.b.push_back(source.value(unit.b, centre_b, spread, specials));
  }
  const Format& start = unit.promote > 0 ? accumulator.format : unit.sum;
  const int centre_c = std::clamp(centre_a + centre_b, -140, 126);
  for (std::size_t i = 0; i < p.rows * p.columns; ++i) {
    p.c.push_back(source.value(start, centre_c, spread, specials));
  }
  return p;
}

TEST(BlockFma, PresetsMatchTheModel) {
  Source source(1);
  for (const NamedSpec& info : Presets()) {
    std::vector<Accumulator> forms{Preset(info.name)};
    const bool is_aligned = unit_of(forms[0]).adder == Adder::aligned;
    const bool is_fp8 = info.name == "ada-fp8" || info.name == "b200-tcgen05-fp8";
    if (is_fp8 || (unit_of(forms[0]).a == ParseFormat("fp16") && is_aligned)) {
      forms.push_back(Preset(info.name, ParseFormat("fp16")));
    }
    if (info.name == "h100-fp8") {
      forms.push_back(ParseAccumulator("h100-fp8 a=e5m2"));
    }
    for (const Accumulator& accumulator : forms) {
      for (const int depth : {1, 16, 67, 300}) {
        ASSERT_TRUE(check(accumulator, random_product(source, accumulator, depth))) << info.name;
      }
    }
  }
}

// Gives `unit` a random adder other than Adder::aligned, and other fields that this adder supports.
void set_adder(Source& source, BlockFma& unit) {
  unit.adder = static_cast<Adder>(source.between(1, 4));
  unit.aligns_addend = true;
  if (unit.adder < Adder::two_steps) unit.fraction_bits = BlockFma{}.fraction_bits;
  if (unit.adder < Adder::two_steps) unit.min_exponent = BlockFma{}.min_exponent;
  if (unit.adder == Adder::exact) return;
  unit.sum = kFp32;
  unit.rounding = Rounding::nearest_even;
  if (unit.adder != Adder::flushed_pairs) return;
  unit.block = source.one_of<int>({2, 4});
  unit.a = source.one_of<Format>({ParseFormat("fp16"), ParseFormat("bf16"), ParseFormat("e3m0")});
  unit.b = source.one_of<Format>({ParseFormat("tf32"), ParseFormat("bf16"), ParseFormat("e5m2")});
}

Accumulator random_accumulator(Source& source) {
  const std::vector<Format> operands = {
      ParseFormat("fp16"), ParseFormat("bf16"), ParseFormat("tf32"),         ParseFormat("e4m3fn"),
      ParseFormat("e5m2"), ParseFormat("fp32"), ParseFormat("e4m3fnuz"),     ParseFormat("e2m1"),
      ParseFormat("e6m9"), ParseFormat("e3m0"), ParseFormat("e5m10:bias=60")};
  const std::vector<Format> sums = {ParseFormat("fp32"),        ParseFormat("fp16"),
                                    ParseFormat("e8m13"),       ParseFormat("bf16"),
                                    ParseFormat("e4m3fn"),      ParseFormat("e5m10:nosub"),
                                    ParseFormat("binary16p8se")};
  Accumulator accumulator;
  accumulator.scheme = Scheme::block_fma;
  accumulator.format = source.one_of(sums);
  BlockFma unit;
  unit.a = source.one_of(operands);
  unit.b = source.one_of(operands);
  unit.block = source.between(1, 64);
  unit.fraction_bits = source.between(1, 30);
  unit.aligns_addend = source.between(0, 2) != 0;
  unit.min_exponent = source.one_of<int>({-400, -133, -20, 3, 127});
  unit.sum = source.one_of(sums);
  unit.rounding = source.one_of<Rounding>({Rounding::toward_zero, Rounding::nearest_even});
  if (source.between(0, 3) == 0) set_adder(source, unit);
  if (source.between(0, 2) == 0)
    unit.promote = unit.block * source.between(unit.aligns_addend ? 1 : 2, 3);
  accumulator.unit = unit;
  accumulator.rounding.mode = source.one_of<Rounding>(
      {Rounding::nearest_even, Rounding::nearest_even, Rounding::toward_zero, Rounding::down,
       Rounding::to_odd, Rounding::stochastic});
  accumulator.rounding.overflow = source.one_of<Overflow>({Overflow::ieee, Overflow::saturate});
  accumulator.rounding.random_bits = source.one_of<int>({3, 8, 12, 24});
  if (unit.promote == 0 && Holds(accumulator.format, unit.sum)) {  // else refused: no effect
    accumulator.rounding.mode = Rounding::nearest_even;
    if (!unit.sum.has_inf()) accumulator.rounding.overflow = Overflow::ieee;
  }
  return accumulator;
}

TEST(BlockFma, AnyUnitMatchesTheModel) {
  Source source(2);
  for (int i = 0; i < (testing::kSanitized ? 40 : 300); ++i) {
    const Accumulator accumulator = random_accumulator(source);
    const int depth = source.between(1, 3 * unit_of(accumulator).block + 5);
    ASSERT_TRUE(check(accumulator, random_product(source, accumulator, depth))) << "case " << i;
  }
}

// Tests products with exponents at or next to the limits of the kernels' path in binary32.
TEST(BlockFma, BothRoutesMeet) {
  Source source(3);
  for (const char* name : {"h100-bf16", "h100-tf32", "v100", "h100-fp8"}) {
    const Accumulator accumulator = Preset(name);
    const BlockFmaPlan plan = make_block_fma_plan(accumulator);
    ASSERT_TRUE(plan.in_binary32) << name;
    for (const int edge : {plan.least_exponent, plan.greatest_exponent}) {
      for (const int beyond : {-1, 0, 1}) {
        Product p{3, 17, 40, {}, {}, {}};
        const int half = std::clamp(edge / 2, -126, 126);
        const auto fill = [&](std::vector<float>& x, std::size_t n, const Format& f, int at) {
          while (x.size() < n) x.push_back(source.value(f, std::clamp(at, -133, 127), 0, false));
        };
        fill(p.a, p.rows * p.depth, unit_of(accumulator).a, half);
        fill(p.b, p.columns * p.depth, unit_of(accumulator).b, edge - half + beyond);
        fill(p.c, p.rows * p.columns, unit_of(accumulator).sum, std::clamp(edge, -149, 127));
        ASSERT_TRUE(check(accumulator, p)) << name << ", edge " << edge << ", " << beyond;
      }
    }
  }
}

// Tests how kernels round a block's sum, in binary32 or binary64. The sums lie at the ends of the
// range that binary32 supports, or need more than 31 bits as multiples of their last place.
TEST(BlockFma, BothEndsMeet) {
  Source source(4);
  for (const char* name : {"h100-bf16", "a100-bf16", "h100-fp8", "v100"}) {
    const Accumulator accumulator = Preset(name);
    const int fraction = unit_of(accumulator).fraction_bits;
    ASSERT_TRUE(make_block_fma_plan(accumulator).ends_in_binary32) << name;
    for (const int edge : {fraction - 126, 118, 127}) {
      for (int at = edge - 2; at <= std::min(edge + 2, 127); ++at) {
        Product p{4, 33, 40, {}, {}, {}};
        const int half = std::clamp(at / 2, -60, 60);
        for (std::size_t i = 0; i < p.rows * p.depth; ++i) {
          p.a.push_back(i % 3 == 0 ? 0 : source.value(unit_of(accumulator).a, half, 1, false));
        }
        for (std::size_t i = 0; i < p.columns * p.depth; ++i) {
          p.b.push_back(source.value(unit_of(accumulator).b, at - half, 1, false));
        }
        for (std::size_t i = 0; i < p.rows * p.columns; ++i) {
          p.c.push_back(source.value(unit_of(accumulator).sum, at, 1, false));
        }
        ASSERT_TRUE(check(accumulator, p)) << name << ", " << at;
      }
    }
  }
}

TEST(BlockFma, LargestSums) {
  for (const NamedSpec& info : Presets()) {
    const Accumulator accumulator = Preset(info.name);
    const auto top = static_cast<float>(2 - unit_of(accumulator).a.epsilon());
    const auto sum_top = static_cast<float>(2 - unit_of(accumulator).sum.epsilon());
    const std::vector<float> a(static_cast<std::size_t>(unit_of(accumulator).block), top);
    for (const float sign : {1.0F, -1.0F}) {
      for (const float c : {sum_top, -sum_top, 0.0F, 0x1p-3F * sum_top, 64 * sum_top}) {
        dot(accumulator, a, std::vector<float>(a.size(), sign * top), c);
      }
    }
  }
}

// --- by hand -------------------------------------------------------------------------------------

TEST(BlockFma, CutsTowardZeroBelowTheGreatestExponent) {
  const Accumulator unit = custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=3");
  // The largest exponent of the terms is 0, so the terms are cut to multiples of 1/8. Negative
  // terms are cut toward zero, too.
  EXPECT_EQ(dot(unit, {1, 0.1875F}, {1, 1}), 1.125F);
  EXPECT_EQ(dot(unit, {1, -0.1875F}, {1, 1}), 0.875F);
  EXPECT_EQ(dot(unit, {1, 0.1F, 0.1F}, {1, 1, 1}), 1);
  // The addend is aligned like a product.
  EXPECT_EQ(dot(unit, {0.1875F}, {1}, -1), -0.875F);
  EXPECT_EQ(dot(unit, {1}, {1}, 0.1875F), 1.125F);
  // Block 2 is aligned again: with the running sum 2, its terms are cut to multiples of 1/4.
  EXPECT_EQ(dot(unit, {1, 1, 0, 0, 0.375F}, {1, 1, 1, 1, 1}), 2.25F);
}

TEST(BlockFma, ProductsAreNotNormalised) {
  const Accumulator unit = custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=2");
  // 1.5 * 1.5 = 2.25 has the exponent 0, as its operands. So it is cut to a multiple of 1/4: 2.25.
  EXPECT_EQ(dot(unit, {1.5F}, {1.5F}), 2.25F);
  EXPECT_EQ(dot(unit, {1.5F, 1}, {1.5F, 0.25F}), 2.5F);
}

TEST(BlockFma, SubnormalsKeepTheirFormatsExponent) {
  const Accumulator fp16 = custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=4");
  // The exponent of 2^-20, a subnormal number of fp16, is taken as fp16's least exponent, -14. The
  // product is therefore cut to a multiple of 2^-18: to 0.
  EXPECT_EQ(dot(fp16, {0x1p-20F}, {1}), 0);
  EXPECT_EQ(dot(fp16, {0x1.8p-18F}, {1}), 0x1p-18F);
  const Accumulator bf16 = custom("fp32 block_fma a=bf16 b=fp16 block=4 fraction_bits=4");
  EXPECT_EQ(dot(bf16, {0x1p-20F}, {1}), 0x1p-20F);
  // A subnormal addend in fp16 is aligned with fp16's least exponent, -14.
  const Accumulator sum = custom("fp16 block_fma a=bf16 b=bf16 block=4 fraction_bits=4 sum=fp16");
  EXPECT_EQ(dot(sum, {0x1p-24F}, {1}, 0x1p-20F), 0);
  EXPECT_EQ(dot(sum, {0x1p-24F}, {1}), 0x1p-24F);
}

TEST(BlockFma, ZerosCountForNothing) {
  const Accumulator unit = custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=4");
  EXPECT_EQ(dot(unit, {0, 0x1p-10F}, {32768, 0x1p-8F}), 0x1p-18F);
  EXPECT_EQ(dot(unit, {0x1p-10F, 32768}, {0x1p-8F, -0.0F}), 0x1p-18F);
  EXPECT_EQ(bits_of(dot(unit, {0, -0.0F}, {1, 1}, 0)), 0U);
  EXPECT_EQ(bits_of(dot(unit, {-0.0F}, {1}, -0.0F)), 0U);
  EXPECT_EQ(bits_of(dot(unit, {1, -1}, {1, 1}, -0.0F)), 0U);
  // All products are zero. The addend is so small that its scaling factor does not fit in binary32.
  for (int exponent = -133; exponent < -95; ++exponent) {
    const float c = std::ldexp(1.5F, exponent);
    EXPECT_EQ(dot(Preset("h100-bf16"), {0}, {1}, c), c);
  }
}

TEST(BlockFma, ExponentsHaveALeast) {
  const Accumulator unit =
      custom("fp32 block_fma a=bf16 b=bf16 block=4 fraction_bits=4 min_exponent=-10");
  EXPECT_EQ(dot(unit, {0x1.8p-14F}, {1}), 0x1p-14F);
  EXPECT_EQ(dot(unit, {0x1.8p-15F}, {1}), 0);
  EXPECT_EQ(dot(unit, {0x1.8p-13F}, {1}), 0x1.8p-13F);
}

TEST(BlockFma, AddendMayBeSeparate) {
  const Accumulator unit =
      custom("fp32 block_fma a=fp16 b=fp16 block=2 fraction_bits=3 addend=separate");
  // Products are cut to multiples of 1/8, so 1 + 0.1875 gives 1.125. The addend c is not cut.
  EXPECT_EQ(dot(unit, {1, 0.1875F}, {1, 1}, 0x1p-20F), 0x1.20001p0F);
  // The exact sum is rounded once, toward zero.
  EXPECT_EQ(dot(unit, {0x1p-14F}, {-0x1p-14F}, 1), 0x1.fffffep-1F);
  EXPECT_EQ(dot(unit, {0x1p-14F}, {0x1p-14F}, 1), 1);
}

TEST(BlockFma, RoundsTheSumOnce) {
  const Accumulator zero = custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=25 sum=e8m3");
  EXPECT_EQ(dot(zero, {1, 0.125F, 0.0625F}, {1, 1, 1}), 1.125F);
  EXPECT_EQ(dot(zero, {-1, -0.125F, -0.0625F}, {1, 1, 1}), -1.125F);
  const Accumulator even = custom(
      "fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=25 sum=e8m3 sum_rounding=nearest_even");
  EXPECT_EQ(dot(even, {1, 0.125F, 0.0625F}, {1, 1, 1}), 1.25F);
  EXPECT_EQ(dot(even, {1, 0.0625F}, {1, 1}), 1);
  EXPECT_EQ(dot(even, {1, 0.0625F, 0x1p-14F}, {1, 1, 0x1p-11F}), 1.125F);
  EXPECT_EQ(dot(even, {1, 0.0625F, 0x1p-14F}, {1, 1, 0x1p-12F}), 1);  // cut before it counts
}

TEST(BlockFma, SpecialValues) {
  const Accumulator unit = Preset("h100-fp16");
  EXPECT_EQ(dot(unit, {1, kInf}, {1, 2}), kInf);
  EXPECT_EQ(dot(unit, {1, kInf}, {1, -2}), -kInf);
  EXPECT_EQ(dot(unit, {65504, 1}, {65504, 1}, kInf), kInf);
  for (const auto& [a, b, c] : std::vector<std::array<float, 3>>{{kInf, 0, 1},
                                                                 {kInf, 1, -kInf},
                                                                 {kNan, 1, 1},
                                                                 {1, kNan, 1},
                                                                 {1, 1, kNan},
                                                                 {0, kNan, 0}}) {
    EXPECT_EQ(bits_of(dot(unit, {a}, {b}, c)), 0x7FC00000U) << a << " * " << b << " + " << c;
  }
  EXPECT_EQ(bits_of(dot(unit, {kInf, kInf}, {1, -1})), 0x7FC00000U);
  const Accumulator fp8 = Preset("deepseek-promoted");
  std::vector<float> a(200, 1);
  a[3] = kNan;
  EXPECT_EQ(bits_of(dot(fp8, a, std::vector<float>(200, 1))), 0x7FC00000U);
}

TEST(BlockFma, PromotionStartsTheUnitAnew) {
  // Without promotion (adding to an fp32 sum at intervals), ones added to 2^14 are cut to 0.
  const std::size_t depth = 32 * 1024;
  const std::vector<float> ones(depth, 1);
  EXPECT_EQ(dot(Preset("h100-fp8"), ones, ones), 0x1p14F);
  EXPECT_EQ(dot(Preset("deepseek-promoted"), ones, ones), static_cast<float>(depth));
  std::vector<float> a(256, 0);
  a[0] = 256;
  for (std::size_t k = 32; k < 256; k += 32) a[k] = 0x1p-6F;
  std::vector<float> b(256, 1);
  b[0] = 256;
  EXPECT_EQ(dot(Preset("h100-fp8"), a, b), 0x1p16F);
  EXPECT_EQ(dot(Preset("deepseek-promoted"), a, b), 0x1p16F + 4 * 0x1p-6F);
}

TEST(BlockFma, OperandsOfAFormat) {
  const auto outside = [](const char* format, const std::vector<float>& x) {
    return FindOutside(View(x), ParseFormat(format)).element;
  };
  EXPECT_EQ(outside("e4m3fn", {1, -448, 0x1p-9F, kNan, 0, -0.0F}), -1);
  EXPECT_EQ(outside("e4m3fn", {1, 449}), 1);
  EXPECT_EQ(outside("e4m3fn", {1, 1, kInf}), 2);
  EXPECT_EQ(outside("e4m3fn", {1.0625F}), 0);
  EXPECT_EQ(outside("e4m3fn", {0x1p-10F}), 0);
  EXPECT_EQ(outside("e5m2", {kInf, -kInf, kNan}), -1);
  EXPECT_EQ(outside("e4m3fnuz", {-0.0F, 240}), -1);
  EXPECT_EQ(outside("e2m1", {6, kNan}), 1);
  EXPECT_EQ(outside("tf32", {from_bits(0x3F802000), from_bits(0x3F801000)}), 1);
  EXPECT_EQ(outside("fp32", {from_bits(1)}), -1);
  std::vector<float> many(3000, 1);
  many[2999] = 1.1F;
  EXPECT_EQ(outside("fp16", many), 2999);
}

}  // namespace
}  // namespace cpd
