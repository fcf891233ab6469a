// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the GPU's matrix products, run on the CPU: a block's threads one after the other
// between barriers, against the oracle. Shapes, layouts and batches: test_gemm_gpu.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/base/product.h"
#include "cpd/spec/presets.h"
#include "kernels/cuda/block_fma.h"
#include "kernels/cuda/gemm_scaled.h"
#include "kernels/cuda/gemm_short.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/gemm_units.h"
#include "tests/testing/few_products.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_scaled.h"
#include "tests/testing/near_ties.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::Layout;
using testing::schemes_of_tiles;
using testing::Shape;
using testing::Tensor;
using testing::Values;

void join(const cuda::TileRange& mine, cuda::TileRange& shared) {
  shared.largest = std::max(shared.largest, mine.largest);
  shared.smallest = std::min(shared.smallest, mine.smallest);
  shared.fraction |= mine.fraction;
}

/// What a block does, as in gemm_general.cu.
template <class Sum>
void run_block(const ScaledGemmCall& call, std::int64_t tile) {
  const int step = cuda::step_of(call.plan);
  cuda::TileMemory memory;
  std::vector<cuda::TileThread<cuda::ScaledSum<Sum>>> threads;
  threads.reserve(cuda::kSums);
  for (int thread = 0; thread < cuda::kSums; ++thread) threads.emplace_back(call, tile, thread);
  int count = 0;
  for (std::int64_t k = 0; k < call.product.depth; k += count) {
    count = cuda::values_in_step(call, k, step);
    std::array<cuda::TileRange, 2> ranges{cuda::TileRange::none(), cuda::TileRange::none()};
    for (const auto& thread : threads) {
      cuda::TileRange a;
      cuda::TileRange b;
      thread.load(memory, k, count, a, b);
      join(a, ranges[0]);
      join(b, ranges[1]);
    }
    for (auto& thread : threads) thread.add(memory, k, count, ranges.data());
  }
  for (auto& thread : threads) thread.store();
}

template <Split kKind>
void run_wide_block(const GemmCall& call, std::int64_t tile) {
  cuda::WideMemory memory;
  std::vector<cuda::PatchSums> sums(cuda::kWideThreads);
  std::vector<cuda::WideThread<kKind>> threads;
  threads.reserve(cuda::kWideThreads);
  const cuda::TilePlace place = cuda::place_of(call.product, tile, cuda::kWide);
  for (int thread = 0; thread < cuda::kWideThreads; ++thread) {
    threads.emplace_back(call, place, thread, sums[static_cast<std::size_t>(thread)]);
    threads.back().begin();
    threads.back().read_sums();
  }
  std::vector<cuda::ChunkCount> chunks(cuda::kWideThreads, cuda::ChunkCount(call));
  for (std::int64_t k = 0; k < call.product.depth; k += cuda::kWideDepth) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(cuda::kWideDepth, call.product.depth - k));
    for (const auto& thread : threads) thread.load(memory, k, count);
    for (const auto& thread : threads) thread.bound(memory);
    for (std::size_t i = 0; i < threads.size(); ++i) threads[i].add(memory, k, count, chunks[i]);
  }
  for (auto& thread : threads) {
    thread.write_sums();
    thread.store();
  }
}

template <bool kShort>
void run_unit_block(const GemmCall& call, std::int64_t tile) {
  cuda::UnitMemory memory;
  std::vector<cuda::UnitPatch> sums(cuda::kWideThreads);
  std::vector<cuda::UnitThread<kShort>> threads;
  threads.reserve(cuda::kWideThreads);
  const cuda::TilePlace place = cuda::place_of(call.product, tile, cuda::kWide);
  for (int thread = 0; thread < cuda::kWideThreads; ++thread) {
    threads.emplace_back(call, place, thread, sums[static_cast<std::size_t>(thread)]);
    threads.back().begin();
  }
  const int step = cuda::step_of(call.plan, cuda::kWideDepth);
  for (std::int64_t k = 0; k < call.product.depth; k += step) {
    const int count = cuda::values_in_step(call, k, step);
    for (const auto& thread : threads) thread.load(memory, k, count);
    for (auto& thread : threads) thread.add(memory, k, count);
  }
  for (auto& thread : threads) thread.store();
}

/// By the short route of the plan's scheme.
void run_short_block(const GemmCall& call, std::int64_t tile) {
  if (!cuda::takes_units(call.plan)) {
    cuda::with_split(call.plan.sum.split.kind,
                     [&]<Split kind>() { run_wide_block<kind>(call, tile); });
  } else if (call.plan.unit.ends_in_binary32) {
    run_unit_block<true>(call, tile);
  } else {
    run_unit_block<false>(call, tile);
  }
}

/// cuda::with_sum of some modes: each costs the compiler seconds.
template <Rounding mode, class Run>
void with_scheme(Scheme scheme, Run run) {
  switch (scheme) {
    case Scheme::kahan:
      return run.template operator()<cuda::OrderedSum<mode, Scheme::kahan>>();
    case Scheme::pairwise:
      return run.template operator()<cuda::OrderedSum<mode, Scheme::pairwise>>();
    case Scheme::block_fma:
      return run.template operator()<cuda::UnitSum<mode>>();
    default:
      return run.template operator()<cuda::OrderedSum<mode, Scheme::sequential>>();
  }
}
constexpr std::array kModes = {Rounding::nearest_even, Rounding::down, Rounding::stochastic};
template <class Run>
void with_sum(const AccumulatorPlan& plan, Rounding mode, Run run) {
  if (mode == kModes[0]) with_scheme<kModes[0]>(plan.scheme, run);
  if (mode == kModes[1]) with_scheme<kModes[1]>(plan.scheme, run);
  if (mode == kModes[2]) with_scheme<kModes[2]>(plan.scheme, run);
}

/// Computes the product tile by tile on the CPU. `wide`: with the tiles of the short route, which
/// the accumulator must allow.
void gemm_by_tiles(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                   const TensorView& out, const TensorView* c, bool wide) {
  GemmCall call{MakeProduct(a, b, out, c), {}, {}, {}};
  call.plan = make_accumulator_plan(accumulator, call.product.depth);
  const int side = wide ? cuda::kWide : cuda::kSide;
  const std::int64_t tiles = cuda::tile_count(call.product, call.product.batch(), side);
  for (std::int64_t tile = 0; wide && tile < tiles; ++tile) run_short_block(call, tile);
  if (wide) return;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    with_sum(call.plan, accumulator.rounding.mode,
             [&]<class Sum>() { run_block<Sum>(cuda::without_scales(call), tile); });
  }
}

template <class Arithmetic = testing::WideArithmetic>
::testing::AssertionResult tiles_match(const testing::GemmCase& g, const Accumulator& accumulator) {
  const Shape shape = testing::out_shape(g);
  const std::vector<float> expected =
      testing::oracle_gemm<Arithmetic>(g.a, g.b, accumulator, shape, g.c);
  TensorView addend;
  if (g.c != nullptr) addend = g.c->view();
  const AccumulatorPlan plan = make_accumulator_plan(accumulator, g.a.shape().back());
  const bool has_wide = cuda::takes_wide(plan) || cuda::takes_units(plan);
  for (const bool wide : {false, true}) {
    if ((wide && !has_wide) || expected.empty()) continue;
    Tensor out(shape, std::vector<float>(expected.size(), -7.0F), g.out_layout, g.out_type);
    gemm_by_tiles(g.a.view(), g.b.view(), accumulator, out.view(),
                  g.c != nullptr ? &addend : nullptr, wide);
    if (!out.gaps_untouched()) {
      return ::testing::AssertionFailure() << "wrote between out's elements";
    }
    const std::vector<float> got = out.read();
    const auto about = [&](std::size_t i) {
      return (wide ? ", short, " : ", general, ") + testing::describe(accumulator) + ", a " +
             testing::text_of(g.a.shape()) + ", b " + testing::text_of(g.b.shape()) + ", element " +
             std::to_string(i);
    };
    const auto equal =
        testing::bits_equal(std::span<const float>(expected), std::span<const float>(got), about);
    if (!equal) return equal;
  }
  return ::testing::AssertionSuccess();
}

// --- scaled operands ---

/// Computes a product of scaled operands on the CPU, tile by tile, in place of the GPU. It does not
/// check a unit's operands.
int scaled_by_tiles(const cuda::Launch& /*launch*/, const ScaledGemmCall& call) {
  const bool is_unit = call.plan.scheme == Scheme::block_fma;
  const Rounding mode = (is_unit ? call.plan.unit.promoted : call.plan.first.round).mode;
  const std::int64_t tiles = cuda::tile_count(call.product, call.product.batch(), cuda::kSide);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    with_sum(call.plan, mode, [&]<class Sum>() { run_block<Sum>(call, tile); });
  }
  return 0;
}

class ScaledTile : public ::testing::Test {
 protected:
  void SetUp() override {
    api_.gemm_scaled = scaled_by_tiles;
    api_.first_outside = [](const cuda::Launch&, const FirstOutsideCall&) { return 0; };
    api_.allocate = [](const cuda::Launch&, cuda::MemoryKind, std::int64_t bytes, void** memory) {
      *memory = std::malloc(static_cast<std::size_t>(bytes));
      return 0;
    };
    cuda::SetLibrary(&api_);
  }
  void TearDown() override { cuda::SetLibrary(nullptr); }

  static ::testing::AssertionResult Matches(const testing::ScaledCase& made,
                                            const Accumulator& accumulator) {
    return testing::scaled_equal(made, accumulator, "tiles",
                                 testing::oracle_gemm_scaled(made, accumulator),
                                 testing::run_scaled(made, accumulator, Device::cuda));
  }

 private:
  cuda::Api api_{};
};

std::vector<RoundingOptions> roundings() {
  std::vector<RoundingOptions> all;
  RoundingOptions o;
  for (const Rounding mode : {kModes[0], kModes[1]}) {
    o.mode = mode;
    all.push_back(o);
  }
  o.mode = kModes[2];
  o.seed = 0x123456789ABCDEF0U;
  o.stream = 77;
  for (const int random_bits : {7, 13, 24}) {
    o.random_bits = random_bits;
    o.variant = random_bits == 13 ? Variant::B : Variant::A;
    all.push_back(o);
  }
  return all;
}

using GemmTile = testing::WithTensors<::testing::Test>;

TEST_F(GemmTile, EverySchemeFormatAndRounding) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e5m10", "e8m23", "e4m3fn", "e4m3fnuz",
                           "e3m0", "e4m3:nosub"}) {
    const Format format = ParseFormat(name);
    for (const Values kind : testing::kValues) {
      const std::int64_t depth = kind == Values::wild || kind == Values::mixed ? 3 : 19;
      const Tensor a = Make({3, depth}, kind, format);
      const Tensor b = Make({depth, 5}, kind, format);
      const Tensor c = Make({3, 5}, Values::mixed, format);
      int turn = 0;
      for (Accumulator accumulator : schemes_of_tiles(format)) {
        for (const RoundingOptions& o : roundings()) {
          accumulator.rounding = o;
          ASSERT_TRUE(tiles_match({a, b, ++turn % 2 == 0 ? &c : nullptr}, accumulator)) << name;
        }
      }
    }
  }
}

// Products of ordinary size whose factors are not, and sums that overflow and come back.
TEST_F(GemmTile, FactorsFarFromOne) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e8m10"}) {
    const Format format = ParseFormat(name);
    for (const int exponent : {60, 100, 120, -60, -100, -120}) {
      const auto scaled = [&](const Tensor& x, int e) {
        std::vector<float> values = x.values();
        for (float& value : values) value = std::ldexp(value, e);
        return Tensor(x.shape(), values);
      };
      const Tensor a = scaled(Make({5, 40}, Values::on_grid, format), exponent);
      const Tensor b = scaled(Make({40, 7}, Values::on_grid, format), -exponent);
      const Tensor x = Make({5, 40}, Values::large, format);
      const Tensor y = Make({40, 7}, Values::large, format);
      const Tensor c = Make({5, 7}, Values::mixed, format);
      for (const Accumulator& accumulator : schemes_of_tiles(format)) {
        ASSERT_TRUE(tiles_match({a, b, &c}, accumulator)) << name;
        ASSERT_TRUE(tiles_match({x, y, &c}, accumulator)) << name;
      }
    }
  }
}

// -0 stays through products that are -0, and no further.
TEST_F(GemmTile, SumsThatStartFromNegativeZero) {
  for (const char* name : {"e4m3", "e5m2", "e4m3fnuz", "e8m23"}) {
    for (const std::int64_t zeros : {4, 8, 12}) {
      std::vector<float> values(12, -0.0F);
      for (std::size_t k = static_cast<std::size_t>(zeros); k < 12; ++k) values[k] = 0.0F;
      const Tensor a({1, 12}, values);
      const Tensor b({12, 3}, std::vector<float>(36, 1.0F));
      const Tensor c({1}, {-0.0F});
      for (const Accumulator& accumulator : schemes_of_tiles(ParseFormat(name))) {
        ASSERT_TRUE(tiles_match({a, b, &c}, accumulator)) << name;
      }
    }
  }
}

/// fma_to_odd as a GPU has it: of the sums rounded down and up, the odd one.
float fma_to_odd_by_directions(float a, float b, float c) {
  const volatile float x = a;
  const volatile float y = b;
  const volatile float z = c;
  const int before = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  const volatile float down = std::fma(x, y, z);
  std::fesetround(FE_UPWARD);
  const volatile float up = std::fma(x, y, z);
  std::fesetround(before);
  const float low = down;
  return (testing::bits_of(low) & 1U) != 0 ? low : static_cast<float>(up);
}

// The CPU has no such instructions, so that the bodies above use another to-odd for exact products.
TEST_F(GemmTile, FusedSumsRoundedToOddByDirections) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m3"}) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    const SplitFormat<float> split(format.man, Format::power_of_two(format.min_quantum_exponent()),
                                   true);
    const testing::FmaProblems p = testing::NearTies(spec, 3).make(1024, 32);
    Accumulator accumulator;
    accumulator.format = format;
    accumulator.exact_products = true;
    std::size_t finite = 0;
    for (std::size_t i = 0; i < p.b.size(); ++i) {
      const std::vector<float> a = {p.a[i / 32]};
      const std::vector<float> b = {p.b[i]};
      const float c = reference::cast(spec, p.c[i]);
      const float expected = reference::dot(accumulator, a, b, c);
      if (!(std::fabs(expected) < 0x1p100F)) continue;  // nor does the kernel take such sums
      ++finite;
      const float got = split_any(fma_to_odd_by_directions(a[0], b[0], c), split);
      ASSERT_EQ(testing::bits_of(got), testing::bits_of(expected))
          << name << ": " << testing::hex(a[0]) << " * " << testing::hex(b[0]) << " + "
          << testing::hex(c);
    }
    EXPECT_GT(finite, p.b.size() / 2) << name;
  }
}

// Sums of no products, and of fewer than a unit's block.
TEST_F(GemmTile, FewProducts) {
  const std::vector<float> addends = testing::few_product_addends();
  const Tensor c({2, 6}, addends);
  for (Accumulator accumulator : testing::few_product_sums()) {
    for (const Rounding mode : testing::kFewModes) {
      accumulator.rounding.mode = mode;
      for (const std::int64_t k : {0, 1, 5}) {
        const auto n = static_cast<std::size_t>(k);
        const Tensor a({2, k}, std::vector<float>(2 * n, 1.5F));
        const Tensor b({k, 6}, std::vector<float>(n * 6, -0.25F));
        ASSERT_TRUE(tiles_match<reference::ExactArithmetic>({a, b, nullptr}, accumulator));
        ASSERT_TRUE(tiles_match<reference::ExactArithmetic>({a, b, &c}, accumulator));
      }
    }
  }
}

TEST_F(GemmTile, MatrixUnits) {
  for (const NamedSpec& info : testing::few(Presets(), 5)) {
    for (const std::int64_t k : {0, 1, 5, 16, 33, 64, 65, 130, 200}) {
      Accumulator accumulator = Preset(info.name);
      const Tensor a = MakeRounded({5, k}, Values::mixed, accumulator.unit->a);
      const Tensor b = MakeRounded({k, 17}, Values::mixed, accumulator.unit->b);
      const Tensor x = MakeRounded({5, k}, Values::on_grid, accumulator.unit->a);
      const Tensor y = MakeRounded({k, 17}, Values::on_grid, accumulator.unit->b);
      const Tensor c = Make({5, 17}, Values::arbitrary, accumulator.format);
      ASSERT_TRUE(tiles_match({a, b}, accumulator)) << info.name;
      ASSERT_TRUE(tiles_match({x, y, &c}, accumulator)) << info.name;
      for (const RoundingOptions& o : roundings()) {
        accumulator.rounding = o;
        accumulator.format = ParseFormat("e6m9");
        accumulator.unit->promote = 2 * accumulator.unit->block;
        ASSERT_TRUE(tiles_match({x, y, &c}, accumulator)) << info.name;
      }
    }
  }
}

/// Terms at the limits of what binary32 serves (ShortBlocks), next to others, to zeros of both
/// signs and to what is not finite; units with each way to end a block.
TEST_F(GemmTile, LimitsOfShortBlocks) {
  for (const char* text :
       {"fp32 block_fma a=bf16 b=bf16 block=16", "fp32 block_fma a=tf32 b=tf32 block=4",
        "fp32 block_fma a=bf16 b=bf16 block=12 min_exponent=-400",
        "fp32 block_fma a=bf16 b=bf16 block=16 min_exponent=-90",
        "fp32 block_fma a=bf16 b=bf16 block=8 fraction_bits=24 min_exponent=-102",
        "fp32 block_fma a=bf16 b=tf32 block=8 min_exponent=119",
        "fp32 block_fma a=bf16 b=bf16 block=16 sum_rounding=nearest_even",
        "fp32 block_fma a=bf16 b=bf16 block=32 fraction_bits=13 sum=e8m13 min_exponent=-139",
        "fp32 block_fma a=bf16 b=bf16 block=8 addend=separate promote=16"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    ASSERT_TRUE(cuda::takes_units(make_accumulator_plan(accumulator, 1))) << text;
    const testing::LimitCases cases(accumulator.unit->fraction_bits - 126, 118);
    for (std::size_t turn = 0; turn < 12; ++turn) {
      const auto [a, b, c] = cases.make(turn, {9, 37}, {37, 10});
      ASSERT_TRUE(tiles_match({a, b}, accumulator)) << text << ", turn " << turn;
      ASSERT_TRUE(tiles_match({a, b, &c}, accumulator)) << text << ", turn " << turn;
    }
  }
}

TEST_F(GemmTile, OrdersOfK) {
  for (const char* text :
       {"fp32 block_fma a=e4m3fn b=e5m2 block=4 group=8 fraction_bits=3",
        "fp32 block_fma a=e4m3fn b=e5m2 block=3 group=12 stride=6 take=3 promote=24",
        "fp32 block_fma a=e4m3fn b=e5m2 block=16 group=48 stride=8 take=1 sum=fp16",
        "fp16 block_fma a=e4m3fn b=e5m2 block=16 group=32 promote=32 sum=fp16 "
        "sum_rounding=nearest_even min_exponent=-21"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    for (const std::int64_t k : {0, 1, 3, 5, 32, 33, 65, 130}) {
      const Tensor a = MakeRounded({5, k}, Values::mixed, accumulator.unit->a);
      const Tensor b = MakeRounded({k, 17}, Values::mixed, accumulator.unit->b);
      const Tensor x = MakeRounded({5, k}, Values::on_grid, accumulator.unit->a);
      const Tensor y = MakeRounded({k, 17}, Values::on_grid, accumulator.unit->b);
      const Tensor c = Make({5, 17}, Values::arbitrary, accumulator.format);
      ASSERT_TRUE(tiles_match({x, y}, accumulator)) << text;
      ASSERT_TRUE(tiles_match({a, b, &c}, accumulator)) << text;
    }
  }
}

TEST_F(ScaledTile, EverySchemeAndRounding) {
  testing::ScaledCases make(ParseFormat("e4m3"));
  std::size_t turn = 0;
  for (const std::int64_t block : {5, 16, 32, 64, 100, 200}) {
    for (Accumulator accumulator : schemes_of_tiles(ParseFormat("e5m7"))) {
      for (const RoundingOptions& o : roundings()) {
        if (++turn % 5 != 0) continue;
        accumulator.rounding = o;
        testing::ScaledCase made =
            make.Make(3, 133, 18, {block, 1}, {turn % 2 == 0 ? block : 2 * block, 3});
        if (turn % 3 == 0) make.AddFactors(made, 3, 18);
        if (turn % 4 == 0) made.c = make.Addend({3, 18});
        ASSERT_TRUE(Matches(made, accumulator));
      }
    }
  }
}

TEST_F(ScaledTile, BatchesEpiloguesAndSumsOfNothing) {
  testing::ScaledCases make(ParseFormat("e4m3"));
  for (const char* text : {"e5m7 sequential", "e5m7 kahan", "e5m7 pairwise", "h100-fp8"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    testing::ScaledCase made{{make.Elements({2, 1, 5, 40})}, {make.Elements({3, 40, 9})}};
    testing::round_into(ParseFormat("e4m3fn"), made.a.elements);
    testing::round_into(ParseFormat("e4m3fn"), made.b.elements);
    made.a.block = made.b.block = 16;
    made.a.scales = make.Scales({2, 1, 5, 3});
    made.b.scales = make.Scales({3, 3, 9});
    made.b.factor = make.Scales({3, 1, 1});
    made.c = make.Addend({3, 5, 9});
    ASSERT_TRUE(Matches(made, accumulator));
    made.at = ScalesAt::epilogue;
    made.a.block = made.b.block = 0;
    made.a.scales = make.Scales({2, 1, 5, 1});
    made.b.scales = make.Scales({1, 1, 9});
    ASSERT_TRUE(Matches(made, accumulator));
    for (const ScalesAt at : {ScalesAt::block, ScalesAt::epilogue}) {
      testing::ScaledCase none{{Tensor({2, 0}, {})}, {Tensor({0, 3}, {})}};
      none.at = at;
      ASSERT_TRUE(Matches(none, accumulator));
      none.c = Tensor({3}, {-0.0F, 1.5F, 3.0F});
      ASSERT_TRUE(Matches(none, accumulator));
    }
  }
}

TEST_F(ScaledTile, Units) {
  for (const char* text :
       {"h100-fp8", "deepseek-promoted", "a100", "h100-fp8 block=8 group=16", "rtx-blackwell-mxfp8",
        "rtx-blackwell-mxfp4", "rtx-blackwell-nvfp4", "rtx-blackwell-mxfp8 promote=64"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    const BlockFma& unit = accumulator.unit.value();
    testing::ScaledCases make(unit.a);
    if (unit.scale) make.scale = *unit.scale;
    for (const std::int64_t k : {1, 33, 64, 130, 200}) {
      const std::int64_t block = unit.scale ? unit.scale_block : 24;
      testing::ScaledCase made = make.Make(5, k, 17, {block, 1}, {2 * block, 2});
      testing::round_into(unit.a, made.a.elements);
      testing::round_into(unit.b, made.b.elements);
      ASSERT_TRUE(Matches(made, accumulator)) << text;
      made.c = make.Addend({5, 17});
      ASSERT_TRUE(Matches(made, accumulator)) << text;
      make.AddFactors(made, 5, 17);
      ASSERT_TRUE(Matches(made, accumulator)) << text;
    }
  }
}

}  // namespace
}  // namespace cpd
