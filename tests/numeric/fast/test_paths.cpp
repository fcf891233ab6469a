// SPDX-License-Identifier: Apache-2.0
//
// Tests on every device that each sum has the same bits with all fast paths, with each single path
// switched off, and with no fast path.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/explain.h"
#include "cpd/base/fast_paths.h"
#include "cpd/base/plans.h"
#include "cpd/comm/virtual.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/gemm.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::view_of;

/// The accumulators of the tests. They cover every summation scheme and every property on which a
/// fast path depends: rounded and exact products, fp32, formats with no mantissa and with few or
/// many mantissa bits, saturation, and stochastic rounding whose random bits fit in binary32 or do
/// not.
constexpr std::array kProducts = {
    "fp32 sequential",
    "fp32 sequential product=exact",
    "fp32 kahan",
    "fp32 pairwise",
    "fp32 chunked chunk=16",
    "e4m3 sequential",
    "e4m3 kahan",
    "e4m3 pairwise",
    "e4m3 chunked chunk=8 inner=e5m2",
    "e4m3 sequential product=exact",
    "e5m10 chunked chunk=12 product=exact",
    "e4m3 kahan product=exact",
    "e4m3 pairwise product=exact",
    "e6m9 sequential overflow=saturate",
    "bf16 kahan",
    "e3m0 sequential",
    "e4m0 kahan overflow=saturate",
    "e4m3 sequential rounding=up",
    "e4m3:nosub pairwise rounding=to_odd",
    "e4m3 sequential rounding=stochastic random_bits=8",
    "e5m2 kahan rounding=stochastic random_bits=24",
    "e4m3 pairwise rounding=stochastic random_bits=16",
    "e4m3 chunked chunk=8 rounding=stochastic",
    "e4m3 sequential rounding=stochastic variant=C",
    "h100-fp16",
    "int32",
};
constexpr std::array kTerms = {
    "fp32 sequential",
    "fp32 kahan",
    "e4m3 sequential",
    "e4m3 kahan",
    "e5m2 pairwise",
    "e4m3 chunked chunk=8 inner=e5m2",
    "e3m0 sequential",
    "e4m0 kahan",
    "e4m3 sequential rounding=down",
    "e4m3 sequential rounding=stochastic",
    "e5m2 chunked chunk=4 rounding=stochastic random_bits=16",
};
/// The format of the ranks' contributions, and the accumulator that sums them.
struct OfRanks {
  const char* format;
  const char* accumulator;
};
constexpr OfRanks kRanks[] = {
    {"e4m3", "e4m3 sequential"}, {"e4m3", "e4m3 kahan"}, {"e3m0", "e3m0 sequential"},
    {"e3m0", "e3m0 kahan"},      {"e5m2", "e4m3 kahan"}, {"fp32", "fp32 sequential"},
    {"e5m2", "e5m2 pairwise"},   {"e2m1", "e3m0 kahan"}, {"e4m3", "e4m3 rounding=stochastic"},
};

/// Returns the sets of fast paths to test: every set that lacks one fast path for sums, and the
/// empty set.
std::vector<FastPaths> sets() {
  std::vector<FastPaths> all = {FastPaths::none()};
#define CPD_FAST_SUM(name, Path) all.push_back(FastPaths().without(FastPath::name));
#define CPD_FAST_LANES(name, Path) all.push_back(FastPaths().without(FastPath::name));
#include "cpd/numeric/fast/paths.def"
  return all;
}

/// Returns random values of about `size`, some of them 40 times larger, rounded to `format`.
std::vector<float> values(std::size_t n, double size, const char* format, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(size));
  std::vector<float> x(n);
  for (float& value : x) value = normal(random) * (random() % 53 == 0 ? 40 : 1);
  std::vector<float> y(n);
  Cast(view_of(x), ParseFormat(format), {}, view_of(y));
  return y;
}

TensorView Matrix(const std::vector<float>& x, std::int64_t rows, std::int64_t columns) {
  return View(x.data(), DType::f32, std::array{rows, columns});
}

class FastPathsOn : public testing::OnDevice {
 protected:
  void TearDown() override {
    SetFastPaths({});
    OnDevice::TearDown();
  }

  /// Returns all texts in `cases` on the CPU. On an emulated device, which is slow, returns only a
  /// few of these texts.
  template <std::size_t n>
  std::vector<const char*> OnThisDevice(const std::array<const char*, n>& cases) const {
    std::vector<const char*> all(cases.begin(), cases.end());
    return on_host() ? all : testing::few_on_cpu(all, 1);
  }
  /// Expects that run() returns the same bits with every set of fast paths.
  template <class Run>
  void ExpectSame(const std::string& about, Run run) {
    SetFastPaths({});
    const std::vector<float> expected = run();
    for (const FastPaths paths : sets()) {
      SetFastPaths(paths);
      const std::vector<float> got = run();
      ASSERT_TRUE(testing::bits_equal(std::span(expected), std::span(got))) << about;
    }
    SetFastPaths({});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, FastPathsOn, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(FastPathsOn, ProductsHaveTheSameBitsWithoutThem) {
  constexpr std::int64_t kRows = 9, kDepth = 70, kColumns = 37;
  for (const char* text : OnThisDevice(kProducts)) {
    const Accumulator accumulator = ParseAccumulator(text);
    for (const char* operands : {"e4m3", "fp16"}) {
      for (const double size : {0.1, 3.0}) {
        const auto a = values(kRows * kDepth, size, operands, 1);
        const auto b = values(kDepth * kColumns, size, operands, 2);
        ExpectSame(text, [&] {
          std::vector<float> out(kRows * kColumns);
          Compute({Matrix(a, kRows, kDepth), Matrix(b, kDepth, kColumns)},
                  Matrix(out, kRows, kColumns),
                  [&](const std::vector<TensorView>& in, const TensorView& to) {
                    Gemm(in[0], in[1], accumulator, to);
                  });
          return out;
        });
      }
    }
  }
}

TEST_P(FastPathsOn, SumsOfTermsHaveTheSameBitsWithoutThem) {
  constexpr std::int64_t kTermsOfSum = 40, kSums = 333;
  for (const char* text : OnThisDevice(kTerms)) {
    const Accumulator accumulator = ParseAccumulator(text);
    for (const double size : {0.1, 10.0}) {
      const auto x = values(kTermsOfSum * kSums, size, "fp32", 3);
      ExpectSame(text, [&] {
        std::vector<float> out(kSums);
        Compute({Matrix(x, kTermsOfSum, kSums)}, view_of(out),
                [&](const std::vector<TensorView>& in, const TensorView& to) {
                  Sum(in[0], 0, accumulator, to);
                });
        return out;
      });
    }
  }
}

TEST_P(FastPathsOn, SumsOverRanksHaveTheSameBitsWithoutThem) {
  constexpr int kWorld = 9;
  constexpr std::int64_t kSize = 500;
  for (const OfRanks& of : kRanks) {
    Reduce spec;
    spec.format = ParseFormat(of.format);
    spec.accumulator = ParseAccumulator(of.accumulator);
    ExpectSame(std::string(of.format) + ", " + of.accumulator, [&] {
      VirtualReduce reduce(spec, kWorld, {kSize});
      testing::Copies there = There();
      std::vector<std::vector<float>> layers;
      for (const int rank : reduce.schedule()) {
        layers.push_back(values(kSize, 0.5, "fp32", static_cast<unsigned>(10 + rank)));
      }
      for (const std::vector<float>& layer : layers) {
        reduce.Contribute(0, there(view_of(layer)), true);
        reduce.EndRank();
      }
      std::vector<float> out(kSize);
      reduce.Result(0, there(view_of(out)));
      there.Read(view_of(out));
      return out;
    });
  }
}

/// The sums in kProducts and kTerms use every fast path, and no sum uses a path that is switched
/// off.
TEST(FastPaths, EveryPathIsTakenByACaseUnlessItIsOff) {
  const auto taken = [] {
    std::set<FastPath> paths;
    for (const char* text : kProducts) {
      paths.insert(AccumulatorPlanOf(ParseAccumulator(text), 70, {}).sum.fast.path);
    }
    for (const char* text : kTerms) {
      const Accumulator accumulator = ParseAccumulator(text);
      paths.insert(TermsPlanOf(accumulator, kFp32).path);
      paths.insert(TermsPlanOf(accumulator, accumulator.format).path);
    }
    return paths;
  };
  const std::set<FastPath> with_all = taken();
#define CPD_FAST_SUM(name, Path)                           \
  EXPECT_TRUE(with_all.contains(FastPath::name)) << #name; \
  SetFastPaths(FastPaths().without(FastPath::name));       \
  EXPECT_FALSE(taken().contains(FastPath::name)) << #name;
#include "cpd/numeric/fast/paths.def"
  SetFastPaths(FastPaths::none());
  EXPECT_EQ(taken(), std::set<FastPath>{FastPath::none});
  SetFastPaths({});
}

TEST(FastPaths, ExplanationsSayThatAPathIsOff) {
  const std::vector<float> x(6, 1);
  std::vector<float> out(4);
  const auto step = [&] {
    const auto steps = Explain([&] {
      Gemm(Matrix(x, 2, 3), Matrix(x, 3, 2), ParseAccumulator("e4m3 sequential"),
           Matrix(out, 2, 2));
    });
    return steps.at(0);
  };
  const bool has_lanes = step().backend != "scalar";
  EXPECT_EQ(step().path.substr(0, 8), has_lanes ? "veltkamp" : "general");
  SetFastPaths(ParseFastPaths("-veltkamp"));
  EXPECT_EQ(step().path, "general");
  EXPECT_EQ(step().why, "CPD_FAST switches its fast path off");
  SetFastPaths({});
}

}  // namespace
}  // namespace cpd
