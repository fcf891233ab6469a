// SPDX-License-Identifier: Apache-2.0
//
// Tests that the fast paths of products (numeric/fast) give the bits of the general path. The same
// kernel computes the same packed block with and without its FastPlan. The data are chosen so that
// sums switch between fast and general path.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/ops/cast.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/fast.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::path_named;

std::vector<const KernelTable*> tables() { return testing::kernel_tables(); }

struct Case {
  std::string accumulator;
  std::string operands;  ///< the format that they lie in
  FastPath path;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"e4m3 sequential", "e4m3", path_named("veltkamp")},
      {"e5m2 sequential", "e5m2", path_named("veltkamp")},
      {"e3m2ieee sequential", "e3m2ieee", path_named("veltkamp")},
      {"e6m9 sequential", "fp32", path_named("veltkamp")},
      {"fp16 sequential overflow=saturate", "e5m2", path_named("veltkamp")},
      {"bf16 sequential", "bf16", path_named("veltkamp")},
      {"e4m3fnuz sequential", "e4m3", path_named("veltkamp")},
      {"e4m3 sequential product=exact", "e4m3", path_named("veltkamp_exact")},
      {"e5m2 sequential product=exact", "e5m2", path_named("veltkamp_exact")},
      {"fp16 sequential product=exact", "fp32", path_named("veltkamp_exact")},
      {"e4m3fnuz sequential product=exact", "e4m3", path_named("veltkamp_exact")},
      {"e4m3 kahan", "e4m3", path_named("veltkamp")},
      {"fp16 kahan", "fp16", path_named("veltkamp")},
      {"fp32 sequential", "fp32", path_named("binary32")},
      {"fp32 sequential product=exact", "fp32", path_named("binary32")},
      {"fp32 kahan", "fp32", path_named("binary32")},
      {"fp32 pairwise", "fp32", path_named("binary32")},
      {"e4m3 pairwise", "e4m3", path_named("veltkamp")},
      {"e5m2 pairwise", "fp32", path_named("veltkamp")},
      {"e4m3fn pairwise", "e4m3fn", path_named("veltkamp")},
      {"e5m2fnuz pairwise", "e5m2fnuz", path_named("veltkamp")},
      {"fp16 pairwise", "fp16", path_named("veltkamp")},
      {"bf16 pairwise", "bf16", path_named("veltkamp")},
      {"tf32 pairwise", "fp32", path_named("veltkamp")},
      {"e2m1 pairwise overflow=saturate", "e2m1", path_named("veltkamp")},
      {"fp16 sequential", "e4m3",
       path_named("veltkamp")},  // from here on products need no rounding
      {"e6m9 sequential", "e5m2", path_named("veltkamp")},
      {"e4m3 sequential overflow=saturate", "e2m1", path_named("veltkamp")},
      {"e5m7 sequential product=e4m3", "e2m1", path_named("veltkamp")},
      {"fp16 sequential product=exact", "e4m3", path_named("veltkamp_exact")},
      {"bf16 sequential product=exact", "e4m3", path_named("veltkamp_exact")},
      {"e6m9 kahan", "e5m2", path_named("veltkamp")},
      {"e4m3 kahan", "e2m1", path_named("veltkamp")},
      {"bf16 pairwise", "e4m3", path_named("veltkamp")},
      {"e4m3 pairwise", "e2m1", path_named("veltkamp")},
      {"e3m0 sequential", "e3m0", path_named("veltkamp")},
      {"e3m0 kahan overflow=saturate", "e3m0", path_named("veltkamp")},
      {"e4m0 kahan", "e4m3", path_named("veltkamp")},
      {"binary8p1se sequential product=exact", "e5m2", path_named("veltkamp_exact")},
      {"e4m0 sequential product=exact overflow=saturate", "e4m0", path_named("veltkamp_exact")},
      {"e3m2 sequential product=e2m0", "e3m2", path_named("veltkamp")},
      {"e2m1 kahan", "e2m1", path_named("veltkamp")},
      {"e2m1 sequential", "e2m1", path_named("veltkamp")},
      {"e4m3 sequential overflow=saturate", "e4m3", path_named("veltkamp")},
      {"e4m3 kahan overflow=saturate", "e4m3", path_named("veltkamp")},
      {"e2m3 sequential product=exact", "e2m3", path_named("veltkamp_exact")},
      {"e4m3 sequential rounding=stochastic random_bits=8", "e4m3", path_named("stochastic")},
      {"e5m2 sequential rounding=stochastic random_bits=16", "e5m2", path_named("stochastic")},
      {"e4m3 sequential rounding=stochastic random_bits=24", "fp32", path_named("stochastic")},
      {"e6m9 sequential rounding=stochastic random_bits=13", "e6m9", path_named("stochastic")},
  };
  return all;
}

/// The cases of stochastic sums: every scheme, rounded and exact products, and formats with every
/// property that matters for their rounding. The number of random bits varies from 1 to 24. With
/// at most 16 random bits, one 32-bit random word gives several random integers. With many random
/// bits, the sums of some formats do not fit in binary32.
const std::vector<Case>& stochastic_cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases;
    int turn = 0;
    for (const char* format : {"fp32",          "tf32",
                               "bf16",          "fp16",
                               "e5m2",          "e4m3",
                               "e4m3fn",        "e4m3fnuz",
                               "e5m2fnuz",      "e3m0",
                               "e2m1",          "e3m2",
                               "e2m3",          "e4m3b11fnuz",
                               "e6m9",          "e3m2ieee",
                               "e8m3",          "e5m12",
                               "binary8p1se",   "binary8p3se",
                               "binary8p4sf",   "e6m9:bias=60",
                               "e5m2:bias=140", "e1m2",
                               "e4m0",          "e1m0p3109:bias=-125"}) {
      for (const char* scheme : {" sequential", " sequential product=exact", " kahan",
                                 " kahan product=exact", " pairwise", " pairwise product=exact"}) {
        for (const int bits : {8, 24, 1 + turn++ % 24}) {
          const std::string policy = turn % 3 == 0 ? " overflow=saturate" : "";
          cases.push_back({format + (scheme + policy) +
                               " rounding=stochastic random_bits=" + std::to_string(bits),
                           turn % 4 == 0 ? "fp32" : format, path_named("stochastic")});
        }
      }
    }
    for (const char* product : {"e5m2", "e4m3", "e8m7", "e3m0", "e6m9"}) {
      for (const char* scheme :
           {"e5m7 sequential product=", "e4m3 kahan product=", "e8m3 pairwise product="}) {
        cases.push_back({std::string(scheme) + product + " rounding=stochastic random_bits=9",
                         "e5m7", path_named("stochastic")});
      }
    }
    return cases;
  }();
  return all;
}

/// Returns random values of about `size` with some zeros, rounded to `format`. If `special` is
/// true, the values also contain an Inf, a NaN and a huge value.
std::vector<float> values(std::int64_t n, const std::string& format, double size, bool special,
                          std::mt19937_64& bits) {
  std::normal_distribution<float> normal(0, static_cast<float>(size));
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = bits() % 16 == 0 ? 0.0F : normal(bits);
  if (special) {
    x[bits() % x.size()] = std::numeric_limits<float>::infinity();
    x[bits() % x.size()] = std::numeric_limits<float>::quiet_NaN();
    x[bits() % x.size()] = 0x1p120F;
  }
  std::vector<float> y(x.size());
  Cast(View(x), ParseFormat(format), {}, View(y));
  return y;
}

/// A block of rows of a and columns of b, packed as kernels read them, and the sums of its
/// products.
class Block {
 public:
  /// The index of the block's first result element. The index selects the random integers of the
  /// element's sum. With many columns, the indices pass 2^32 within the second row.
  static constexpr std::uint64_t kIndex = (std::uint64_t{1} << 32) - 40;

  Block(const KernelTable& kernels, std::int64_t rows, std::int64_t columns, std::int64_t count,
        const std::vector<float>& a, const std::vector<float>& b)
      : kernels_(kernels) {
    const auto padded = [](std::int64_t n, std::int64_t width) {
      return (n + width - 1) / width * width;
    };
    const std::int64_t groups = (count + kRangeGroup - 1) / kRangeGroup;
    const std::int64_t lines = padded(rows, kernels.gemm_rows);
    const std::int64_t across = padded(columns, kernels.gemm_columns);
    a_.resize(static_cast<std::size_t>(lines * count));
    b_.resize(static_cast<std::size_t>(across * count));
    a_logs_.resize(a_.size());
    b_logs_.resize(b_.size());
    a_range_.resize(static_cast<std::size_t>(lines / kernels.gemm_rows * groups));
    b_range_.resize(static_cast<std::size_t>(across / kernels.gemm_columns * groups));
    kernels.pack(rows, count, a.data(), count, 1, kernels.gemm_rows, 24, a_.data(), a_range_.data(),
                 a_logs_.data());
    kernels.pack(columns, count, b.data(), 1, columns, kernels.gemm_columns, 24, b_.data(),
                 b_range_.data(), b_logs_.data());
    block_.rows = rows;
    block_.columns = columns;
    block_.count = count;
    block_.plane = lines * across;
    block_.state_columns = across;
    block_.index = kIndex;
    block_.index_row = static_cast<std::uint64_t>(columns);
  }

  /// Computes all sums of the block of operands. Each sum starts from `start`.
  std::vector<float> Sums(const GemmPlan& plan, float start) {
    std::vector<float> state = Start(plan, block_.count, start);
    Add(plan, 0, true, state);
    return Results(state);
  }

  /// Returns the initial values of the block's running sums, for sums of `depth` products that
  /// begin with `start`.
  [[nodiscard]] std::vector<float> Start(const GemmPlan& plan, std::int64_t depth,
                                         float start) const {
    const std::int64_t planes = planes_of_sum(plan.scheme, depth);
    std::vector<float> state(static_cast<std::size_t>(planes * block_.plane));
    std::fill_n(state.begin(), block_.plane, start);
    return state;
  }
  void Add(const GemmPlan& plan, std::int64_t first_k, bool last, std::vector<float>& state) {
    GemmBlock block = block_;
    block.first_k = first_k;
    block.last = last;
    block.a = a_.data();
    block.b = b_.data();
    block.a_range = a_range_.data();
    block.b_range = b_range_.data();
    block.a_logs = a_logs_.data();
    block.b_logs = b_logs_.data();
    block.state = state.data();
    kernels_.gemm(plan, block);
  }
  [[nodiscard]] std::vector<float> Results(const std::vector<float>& state) const {
    std::vector<float> sums;
    for (std::int64_t i = 0; i < block_.rows; ++i) {
      const auto row = state.begin() + i * block_.state_columns;
      sums.insert(sums.end(), row, row + block_.columns);
    }
    return sums;
  }

 private:
  const KernelTable& kernels_;
  GemmBlock block_;
  std::vector<float> a_, b_;
  std::vector<PanelRange> a_range_, b_range_;
  std::vector<std::int32_t> a_logs_, b_logs_;
};

/// Returns the plan without its fast path.
GemmPlan general_of(GemmPlan plan) {
  plan.fast = FastPlan{};
  return plan;
}

using Bits = std::span<const float>;

void Count(Bits sums, int& finite, int& others) {
  for (const float sum : sums) (std::isfinite(sum) ? finite : others) += 1;
}

TEST(GemmRoutes, PlansTakeTheShortRoundings) {
  for (const auto* some : {&cases(), &stochastic_cases()}) {
    for (const Case& c : *some) {
      const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator(c.accumulator), 100);
      EXPECT_EQ(static_cast<int>(plan.sum.fast.path), static_cast<int>(c.path)) << c.accumulator;
    }
  }
  for (const char* general :
       {"e3m0 pairwise", "e4m3:nosub sequential", "e8m12 sequential", "e4m3 sequential rounding=up",
        "e4m3 sequential product=e5m2", "e4m3 kahan product=exact",
        "e4m3 sequential rounding=stochastic variant=C",
        "e4m3:nosub sequential rounding=stochastic", "fp32 sequential overflow=saturate",
        "e4m3 pairwise product=exact", "fp32 kahan product=exact", "fp32 pairwise rounding=up",
        "e8m12 pairwise"}) {
    const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator(general), 100);
    EXPECT_EQ(static_cast<int>(plan.sum.fast.path), static_cast<int>(FastPath::none)) << general;
  }
}

/// The least number of finite sums, and of infinite or NaN sums, that a test with random values
/// must have compared.
const int kLeast = testing::kSanitized ? 20000 : 100000;

TEST(GemmRoutes, ShortAndGeneralAreTheSameBits) {
  constexpr std::int64_t kRows = 19;
  constexpr std::int64_t kColumns = 70;
  constexpr std::int64_t kDepth = 93;
  std::mt19937_64 bits(20);
  int finite = 0;
  int infinite = 0;
  for (const KernelTable* kernels : tables()) {
    for (const Case& c : testing::thinned(cases(), 2)) {
      const Accumulator accumulator = ParseAccumulator(c.accumulator);
      const double max = std::min(accumulator.format.max(), 0x1p60);
      // The sums are about 0.01, 0.3, 1 or 4 times the format's largest value, or about its least
      // normal number.
      for (const double part : {0.01, 0.3, 1.0, 4.0, -1.0}) {
        const double sums = part > 0 ? part * max : accumulator.format.min_normal();
        const double size = std::sqrt(sums / std::sqrt(static_cast<double>(kDepth)));
        const auto a = values(kRows * kDepth, c.operands, size, part == 0.3, bits);
        const auto b = values(kColumns * kDepth, c.operands, size, false, bits);
        Block block(*kernels, kRows, kColumns, kDepth, a, b);
        const AccumulatorPlan plan = make_accumulator_plan(accumulator, kDepth);
        const GemmPlan general = general_of(plan.sum);
        for (const float start : testing::thinned<float>({-0.0F, 0.0F, 1.0F}, 3)) {
          const auto got = block.Sums(plan.sum, start);
          const auto expected = block.Sums(general, start);
          ASSERT_TRUE(testing::bits_equal(Bits(expected), Bits(got)))
              << kernels->name << ", " << c.accumulator << ", sums about " << sums << ", start "
              << start;
          Count(got, finite, infinite);
        }
      }
    }
  }
  EXPECT_GT(finite, kLeast);
  EXPECT_GT(infinite, kLeast);
}

/// Each product is (2^24 - R) * 2^-24 times the least spacing, so the last bits of R decide that it
/// is rounded up. The fast path in binary32 drops those bits and may not compute such products.
TEST(GemmRoutes, DrawsKeepTheBitsThatMatter) {
  const Accumulator accumulator = ParseAccumulator("e4m3 sequential rounding=stochastic");
  const double quantum = accumulator.format.min_subnormal();
  AccumulatorPlan plan = make_accumulator_plan(accumulator, 1);
  ASSERT_GT(plan.sum.fast.stochastic.spare_bits, 0);
  const auto first = static_cast<std::uint32_t>(Block::kIndex);
  int products = 0;
  for (std::uint64_t seed = 0; products < 20; ++seed) {
    plan.sum.sum.seed = seed;
    std::vector<float> a;
    for (std::uint32_t row = 0; row < 2; ++row) {
      const std::uint32_t random =
          fold_draw(24, seed, 0, first + row, Block::kIndex + row, plan.sum.first_draw);
      const std::uint32_t rest = (1U << 24) - random;
      a.push_back(static_cast<float>(rest * quantum * 0x1p-24));
      if (rest >> 21 != 0 || rest % 64 == 0) a.clear();  // too many bits, or none that are spared
      if (a.empty()) break;
    }
    if (a.empty()) continue;
    for (const KernelTable* kernels : tables()) {
      Block block(*kernels, 2, 1, 1, a, {1.0F});
      for (const float sum : block.Sums(plan.sum, 0.0F)) {
        ASSERT_EQ(sum, static_cast<float>(quantum)) << kernels->name << ", seed " << seed;
      }
    }
    ++products;
  }
}

/// Tests sums that start at any power of two in the accumulator's range, with either sign, also
/// beyond the limits of the fast path.
TEST(GemmRoutes, SumsStartAnywhere) {
  std::mt19937_64 bits(29);
  for (const KernelTable* kernels : tables()) {
    for (const Case& c : testing::thinned(cases(), 3)) {
      const Accumulator accumulator = ParseAccumulator(c.accumulator);
      const AccumulatorPlan plan = make_accumulator_plan(accumulator, 20);
      const GemmPlan general = general_of(plan.sum);
      Block block(*kernels, 3, 37, 20, values(3 * 20, c.operands, 1, false, bits),
                  values(37 * 20, c.operands, 1, false, bits));
      for (int exponent = accumulator.format.emin(); exponent <= accumulator.format.emax();
           ++exponent) {
        const float start = std::ldexp(bits() % 2 == 0 ? 1.0F : -1.0F, exponent);
        const auto got = block.Sums(plan.sum, start);
        const auto expected = block.Sums(general, start);
        ASSERT_TRUE(testing::bits_equal(Bits(expected), Bits(got)))
            << kernels->name << ", " << c.accumulator << ", start " << start;
      }
    }
  }
}

/// Tests sums that continue in a second block of k. The kernel stores the range of the operands for
/// each group of 8 values of k, and the second block may begin within a group.
TEST(GemmRoutes, SumsGoOnInTheNextBlock) {
  std::mt19937_64 bits(23);
  for (const KernelTable* kernels : tables()) {
    for (const Case& c : testing::thinned(cases(), 3)) {
      const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator(c.accumulator), 61);
      const GemmPlan general = general_of(plan.sum);
      for (const std::int64_t first : {36, 40, 48}) {
        const std::int64_t second = 61 - first;
        const auto part = [&](std::int64_t count) {
          return Block(*kernels, 5, 37, count, values(5 * count, c.operands, 0.5, false, bits),
                       values(37 * count, c.operands, 0.5, false, bits));
        };
        Block low = part(first);
        Block high = part(second);
        const auto sums = [&](const GemmPlan& route, float start) {
          std::vector<float> state = low.Start(route, 61, start);
          low.Add(route, 0, false, state);
          high.Add(route, first, true, state);
          return high.Results(state);
        };
        for (const float start : {0.0F, -0.0F, 1.0F}) {
          const auto got = sums(plan.sum, start);
          const auto expected = sums(general, start);
          ASSERT_TRUE(testing::bits_equal(Bits(expected), Bits(got)))
              << kernels->name << ", " << c.accumulator << ", blocks " << first << " and " << second
              << ", start " << start;
        }
      }
    }
  }
}

/// Tests every path for stochastic sums. Some sums overflow, or have special values among the
/// operands or at the start. A sum's first random integer may lie anywhere in a block of random
/// words, or in the middle of a word. The number of products is even or odd.
TEST(GemmRoutes, StochasticAndGeneralAreTheSameBits) {
  constexpr std::int64_t kColumns = 37;
  std::mt19937_64 bits(23);
  int finite = 0;
  int special = 0;
  for (const KernelTable* kernels : tables()) {
    for (const Case& c : testing::thinned(stochastic_cases(), 2)) {
      const Accumulator accumulator = ParseAccumulator(c.accumulator);
      const double max = std::min(accumulator.format.max(), 0x1p120);
      for (const double part : {0.01, 0.5, 4.0, -1.0}) {
        const std::int64_t depth = std::array{1, 2, 8, 45, 150}[bits() % 5];
        const auto rows = static_cast<std::int64_t>(1 + bits() % 3);
        const double sums = part > 0 ? part * max : 4 * accumulator.format.min_subnormal();
        const double size = std::sqrt(sums / std::sqrt(static_cast<double>(depth)));
        const auto a = values(rows * depth, c.operands, size, part == 0.5, bits);
        const auto b = values(kColumns * depth, c.operands, size, false, bits);
        Block block(*kernels, rows, kColumns, depth, a, b);
        const AccumulatorPlan plan = make_accumulator_plan(accumulator, depth);
        GemmPlan taken = plan.sum;
        taken.first_draw += bits() % 40;
        const GemmPlan general = general_of(taken);
        const auto largest = static_cast<float>(accumulator.format.max());
        const float zero = accumulator.format.has_negative_zero() ? -0.0F : -largest;
        constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
        for (const float start : testing::thinned<float>({zero, 0.0F, largest, kNan}, 2)) {
          const auto got = block.Sums(taken, start);
          const auto expected = block.Sums(general, start);
          ASSERT_TRUE(testing::bits_equal(Bits(expected), Bits(got)))
              << kernels->name << ", " << c.accumulator << ", " << depth << " products, sums about "
              << sums << ", start " << start;
          Count(got, finite, special);
        }
      }
    }
  }
  EXPECT_GT(finite, kLeast);
  EXPECT_GT(special, kLeast);
}

/// Tests products next to powers of two, for which the fast path finds the binade from approximate
/// logarithms. b is 2^j / a, or differs from it by up to 2^14 units in the last place.
TEST(GemmRoutes, ProductsNextToPowersOfTwo) {
  std::mt19937_64 bits(22);
  for (const KernelTable* kernels : tables()) {
    for (const char* name : {"fp16 sequential", "e6m9 sequential", "bf16 sequential",
                             "e4m3 sequential", "e5m2 kahan", "tf32 sequential"}) {
      const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator(name), 1);
      ASSERT_TRUE(plan.sum.fast.takes_logs) << name;
      const GemmPlan general = general_of(plan.sum);
      for (int round = 0; round < 200; ++round) {
        std::vector<float> a(8);
        std::vector<float> b(64);
        for (float& x : a) {
          const auto kept = static_cast<std::uint32_t>(0xFFFFFFFF << bits() % 24);
          x = std::bit_cast<float>(0x3F800000U |
                                   (static_cast<std::uint32_t>(bits()) & 0x7FFFFF & kept));
          if (bits() % 2 == 0) x = -x;
        }
        for (float& x : b) {
          const float inverse = std::ldexp(1.0F, static_cast<int>(bits() % 5) - 2) / a[bits() % 8];
          const auto off = static_cast<std::int32_t>(bits() % 5) - 2;
          const auto far = off * (std::int32_t{1} << bits() % 14);
          x = std::bit_cast<float>(std::bit_cast<std::int32_t>(inverse) + far);
        }
        Block block(*kernels, 8, 64, 1, a, b);
        const auto got = block.Sums(plan.sum, 0);
        const auto expected = block.Sums(general, 0);
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
              << kernels->name << ", " << name << ": " << a[i / 64] << " * " << b[i % 64];
        }
      }
    }
  }
}

/// Makes the sums of a single row of the product overflow the format. Repeats this for every row.
TEST(GemmRoutes, AnyRowMayOverflow) {
  constexpr std::int64_t kRows = 9;
  constexpr std::int64_t kColumns = 40;
  constexpr std::int64_t kDepth = 100;
  const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator("e4m3 sequential"), kDepth);
  for (const KernelTable* kernels : tables()) {
    for (std::int64_t large = 0; large < kRows; ++large) {
      std::vector<float> a(kRows * kDepth, 0.0625F);
      std::fill_n(a.begin() + large * kDepth, kDepth, 7.5F);
      Block block(*kernels, kRows, kColumns, kDepth, a,
                  std::vector<float>(kColumns * kDepth, 1.625F));
      const auto sums = block.Sums(plan.sum, 0);
      for (std::int64_t i = 0; i < kRows; ++i) {
        const bool is_infinite = std::isinf(sums[static_cast<std::size_t>(i * kColumns)]);
        EXPECT_EQ(is_infinite, i == large) << kernels->name << ", row " << i;
      }
    }
  }
}

/// The kernel stores the range of the operands for each group of 8 values of k. One large operand
/// makes its group take the general path, and no other group.
TEST(GemmRoutes, OneLargeOperandAmongMany) {
  std::mt19937_64 bits(21);
  for (const KernelTable* kernels : tables()) {
    for (const Case& c : testing::thinned(cases(), 3)) {
      for (std::int64_t at = 0; at < 40; at += 3) {
        auto a = values(std::int64_t{9} * 40, c.operands, 0.1, false, bits);
        const auto b = values(std::int64_t{33} * 40, c.operands, 0.1, false, bits);
        a[static_cast<std::size_t>(40 + at)] = 0x1p110F;
        Block block(*kernels, 9, 33, 40, a, b);
        const AccumulatorPlan plan = make_accumulator_plan(ParseAccumulator(c.accumulator), 40);
        const GemmPlan general = general_of(plan.sum);
        const auto got = block.Sums(plan.sum, 0);
        const auto expected = block.Sums(general, 0);
        ASSERT_TRUE(testing::bits_equal(Bits(expected), Bits(got)))
            << kernels->name << ", " << c.accumulator << ", k " << at;
      }
    }
  }
}

}  // namespace
}  // namespace cpd
