// SPDX-License-Identifier: Apache-2.0
//
// Tests that W virtual ranks give the bits of a serial sum that the oracle computes from the
// documented rules of a reduction: cast, order, groups and scale. The tests compute the slices of
// each order themselves, and not by the library's functions.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "cpd/comm/virtual.h"
#include "cpd/compress/codecs.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_sum.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/reduce.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::Ranks;

/// Sums the terms as a binary tree: adds neighbors, level by level. An odd last term moves up to
/// the next level unchanged.
float tree_sum(const reference::Spec& spec, std::vector<float> terms) {
  if (terms.size() == 1) return reference::cast(spec, terms[0]);
  while (terms.size() > 1) {
    std::vector<float> merged;
    for (std::size_t i = 0; i < terms.size(); i += 2) {
      const bool odd = i + 1 == terms.size();
      merged.push_back(odd ? terms[i] : reference::add(spec, terms[i], terms[i + 1]));
    }
    terms = merged;
  }
  return terms[0];
}

/// Sums each chunk of terms, and then sums the chunks' sums.
float chunked_sum(const Accumulator& a, const std::vector<float>& terms) {
  const reference::Spec inner = reference::spec_of(a.inner.value_or(a.format));
  const auto chunk = static_cast<std::size_t>(a.chunk);
  std::vector<float> sums;
  for (std::size_t begin = 0; begin < terms.size(); begin += chunk) {
    const std::size_t n = std::min(chunk, terms.size() - begin);
    sums.push_back(reference::sum_sequential(inner, std::span(terms).subspan(begin, n)));
  }
  return reference::sum_sequential(reference::spec_of(a.format), sums);
}

/// Returns the oracle's sum of the terms, in the order of the summation scheme.
float ordered_sum(const Accumulator& a, Scheme scheme, const std::vector<float>& terms) {
  const reference::Spec spec = reference::spec_of(a.format);
  if (scheme == Scheme::kahan) return reference::sum_kahan(spec, terms);
  if (scheme == Scheme::chunked) return chunked_sum(a, terms);
  if (scheme == Scheme::pairwise) return tree_sum(spec, terms);
  return reference::sum_sequential(spec, terms);
}

/// Returns the values in cyclic order, beginning with number `start`.
std::vector<float> rotated(const std::vector<float>& units, std::size_t start) {
  std::vector<float> order;
  for (std::size_t i = 0; i < units.size(); ++i) order.push_back(units[(start + i) % units.size()]);
  return order;
}

/// Returns the slice that holds value i of n. The first n mod `slices` slices are one value longer
/// than the others.
std::size_t slice_of(std::size_t i, std::size_t n, std::size_t slices) {
  std::size_t s = 0;
  for (std::size_t end = n / slices + (n % slices > 0 ? 1 : 0); i >= end;) {
    ++s;
    end += n / slices + (s < n % slices ? 1 : 0);
  }
  return s;
}

float expected_value(const Reduce& spec, const std::vector<float>& given, int shift, std::size_t i,
                     std::size_t n) {
  const reference::Spec wire = reference::spec_of(spec.format);
  const reference::Spec result = reference::spec_of(spec.result);
  std::vector<float> units;
  for (const float x : given) units.push_back(reference::cast(wire, std::ldexp(double{x}, shift)));
  const bool one_group = spec.group_size == static_cast<int>(given.size());
  if (spec.group_size > 0 && !one_group) {
    std::vector<float> sums;
    const auto size = static_cast<std::size_t>(spec.group_size);
    for (std::size_t begin = 0; begin < units.size(); begin += size) {
      const std::vector<float> group(
          units.begin() + static_cast<std::ptrdiff_t>(begin),
          units.begin() + static_cast<std::ptrdiff_t>(std::min(begin + size, units.size())));
      sums.push_back(
          reference::cast(result, ordered_sum(spec.accumulator, spec.accumulator.scheme, group)));
    }
    units = sums;
  }
  if (spec.order == Order::ring && !one_group)
    units = rotated(units, slice_of(i, n, units.size()) + 1);
  const bool by_tree = spec.order == Order::tree && !one_group;
  const Scheme across = by_tree ? Scheme::pairwise : spec.accumulator.scheme;
  const float sum = reference::cast(result, ordered_sum(spec.accumulator, across, units));
  const auto unscaled = static_cast<float>(std::ldexp(double{sum}, -shift));
  return spec.average ? unscaled / static_cast<float>(given.size()) : unscaled;
}

Ranks random_ranks(std::size_t world, std::uint64_t seed) {
  return testing::random_ranks(world, {37, 1, 0, 70}, seed);
}

std::vector<float> expected_layer(const Reduce& spec, const Ranks& ranks, std::size_t layer,
                                  int shift) {
  const std::size_t n = ranks[0][layer].size();
  std::vector<float> expected(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<float> given;
    for (const auto& rank : ranks) given.push_back(rank[layer][i]);
    expected[i] = expected_value(spec, given, shift, i, n);
  }
  return expected;
}

/// Expects that every backend gives the oracle's values, and that all backends choose the same APS
/// shifts.
void expect_oracle(const Reduce& spec, const Ranks& ranks) {
  std::vector<std::vector<float>> expected;
  std::vector<int> shifts;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::vector<TensorReport> reports;
    const auto got = testing::virtual_reduce(spec, ranks, &reports);
    for (std::size_t l = 0; l < got.size(); ++l) {
      if (l == expected.size()) {
        shifts.push_back(reports[l].shift);
        expected.push_back(expected_layer(spec, ranks, l, shifts[l]));
      }
      EXPECT_EQ(reports[l].shift, shifts[l]) << backend;
      EXPECT_TRUE(
          testing::bits_equal(std::span<const float>(expected[l]), std::span<const float>(got[l])))
          << backend << ", " << ToString(spec.format) << " W = " << ranks.size() << ", "
          << ToString(spec.order) << ", groups of " << spec.group_size << ", "
          << ToString(spec.accumulator.scheme);
    }
  }
}

/// Returns accumulators with every scheme, some with chunks of different lengths.
std::vector<Accumulator> accumulators(const Format& format) {
  std::vector<Accumulator> all(6);
  all[1].scheme = Scheme::kahan;
  all[2].scheme = all[3].scheme = all[4].scheme = Scheme::chunked;
  all[3].chunk = 3;
  all[3].inner = ParseFormat("e6m9");
  all[4].chunk = 4;
  all[4].inner = ParseFormat("e5m1");
  all[5].scheme = Scheme::pairwise;
  for (Accumulator& a : all) a.format = format;
  return all;
}

TEST(VirtualReduce, EqualsTheSerialOracle) {
  for (const std::size_t world : {1U, 2U, 3U, 5U, 7U, 8U, 16U}) {
    if (testing::kSanitized && world > 5) continue;
    const Ranks ranks = random_ranks(world, world);
    for (const char* name : {"e4m3", "e3m0", "e5m2", "fp16", "fp32"}) {
      for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
        for (const int group : {0, 1, 3, 16}) {
          if (group > static_cast<int>(world)) continue;
          for (const Accumulator& accumulator : accumulators(ParseFormat(name))) {
            if (order == Order::tree && accumulator.scheme != Scheme::sequential) break;
            Reduce spec;
            spec.format = spec.result = accumulator.format;
            spec.accumulator = accumulator;
            spec.order = order;
            spec.group_size = group;
            spec.aps = world % 2 == 0 ? Aps::on : Aps::off;
            spec.average = world == 7;
            expect_oracle(spec, ranks);
          }
        }
      }
    }
  }
}

TEST(VirtualReduce, WiderAndNarrowerAccumulators) {
  const Ranks ranks = random_ranks(9, 5);
  for (const auto& [wire, sum, result] :
       {std::array{"e4m3", "fp32", "e4m3"}, std::array{"fp32", "e4m3", "e4m3"},
        std::array{"e5m2", "e6m9", "bf16"}, std::array{"e3m0", "e8m10", "fp32"}}) {
    for (const int group : {0, 4}) {
      for (const Order order : {Order::sequential, Order::tree}) {
        Reduce spec;
        spec.format = ParseFormat(wire);
        spec.accumulator.format = ParseFormat(sum);
        spec.result = ParseFormat(result);
        spec.group_size = group;
        spec.order = order;
        expect_oracle(spec, ranks);
      }
    }
  }
}

TEST(VirtualReduce, LossScaleIsUndone) {
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  spec.loss_scale = 1024;
  const auto got = testing::virtual_reduce(spec, {{{0x1p-12F}}, {{0x1p-13F}}});
  EXPECT_EQ(got[0][0], 0x1.8p-12F);
  spec.loss_scale = 3;
  EXPECT_THROW(testing::virtual_reduce(spec, {{{1}}}), Error);
  spec.loss_scale = 2;
  spec.aps = Aps::on;
  EXPECT_THROW(testing::virtual_reduce(spec, {{{1}}}), Error);
}

TEST(VirtualReduce, ApsNeverOverflowsForFiniteInput) {
  for (int exp = 3; exp <= 5; ++exp) {
    for (int man = 0; man <= 7; ++man) {
      for (const std::size_t world : {2U, 7U, 64U, 256U, 300U}) {
        for (const int group : {0, 16}) {
          if (group > static_cast<int>(world)) continue;
          Reduce spec;
          spec.format = spec.accumulator.format = spec.result = MakeFormat(exp, man);
          spec.group_size = group;
          spec.aps = Aps::on;
          Ranks ranks(world, {{1, 1.9999999F, 3e-30F}, {1e30F, -1e30F, 0}});
          std::vector<TensorReport> reports;
          for (const auto& layer : testing::virtual_reduce(spec, ranks, &reports)) {
            for (const float x : layer) EXPECT_TRUE(std::isfinite(x)) << exp << "," << man;
          }
        }
      }
    }
  }
}

/// APS scales a layer by a power of two so that its sum does not overflow. If all casts and sums
/// round up, the sum may be one bit larger, and still must not overflow.
TEST(VirtualReduce, ApsLeavesRoomForRoundingUp) {
  for (const auto& [name, worlds] : {std::pair{"e5m2", std::array{13U, 14U, 15U}},
                                     {"e4m2", {13U, 14U, 15U}},
                                     {"e5m1", {6U, 7U, 9U}}}) {
    for (const std::size_t world : worlds) {
      Reduce spec;
      spec.format = spec.accumulator.format = spec.result = ParseFormat(name);
      spec.rounding.mode = spec.accumulator.rounding.mode = Rounding::up;
      spec.aps = Aps::on;
      const float sum = testing::virtual_reduce(spec, Ranks(world, {{1.001F}}))[0][0];
      EXPECT_TRUE(std::isfinite(sum)) << name << ", W = " << world;
      EXPECT_GE(sum, 1.001F * static_cast<float>(world)) << name;
    }
  }
}

/// The wire format e5m0 has only powers of two, so each rank's 1.52 becomes 2. The sum is then 42,
/// although APS expects at most 32. The result format's largest number is a power of two, so APS
/// must scale the values down further.
TEST(VirtualReduce, ApsLeavesRoomForACoarseWire) {
  Reduce spec;
  spec.format = ParseFormat("e5m0");
  spec.accumulator.format = kFp32;
  spec.result = ParseFormat("e4m1fn");
  ASSERT_EQ(spec.result.max(), std::ldexp(1.0, spec.result.emax()));
  spec.aps = Aps::on;
  const float sum = testing::virtual_reduce(spec, Ranks(21, {{1.52F}}))[0][0];
  EXPECT_EQ(sum, 48.0F);  // 42 rounded to two bits, of 32 and 48
}

/// The sum of each group and the total are rounded into the result's format. Each of these
/// roundings uses a random stream of its own. The streams have the purpose `result` and differ in
/// their position: one position for each group, and one for the total.
TEST(VirtualReduce, ResultsDrawFromStreamsOfTheirOwn) {
  constexpr std::size_t kCount = 600;
  const Ranks ranks = testing::random_ranks(4, {0, kCount}, 3);
  Reduce spec;
  spec.group_size = 2;
  const TensorOptions call{.seed = 77, .step = 5};
  spec.result = ParseFormat("e5m2");
  spec.accumulator.rounding.mode = Rounding::stochastic;
  const auto cast = [&](std::int64_t position, const std::vector<float>& sums) {
    const RandomKey key{call.seed, StreamOf(Purpose::result, call.step, 1, position)};
    std::vector<float> results(kCount);
    CastScaled(spec.result, spec.accumulator.rounding, 0, 0, kCount, sums.data(), results.data(),
               key);
    return results;
  };
  const auto sum = [&](std::int64_t position, const std::vector<float>& a,
                       const std::vector<float>& b) {
    const RandomKey key{call.seed, StreamOf(Purpose::sum, call.step, 1, position)};
    std::vector<float> sums(kCount);
    Add(View(a), View(b), kFp32, spec.accumulator.rounding, View(sums), key);
    return cast(position, sums);
  };
  const std::vector<float> expected =
      sum(kAcross, sum(0, ranks[0][1], ranks[1][1]), sum(1, ranks[2][1], ranks[3][1]));
  const std::vector<float> got = testing::virtual_reduce(spec, ranks, nullptr, call)[1];
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)));
}

TEST(VirtualReduce, ZeroNanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  spec.aps = Aps::on;
  std::vector<TensorReport> reports;
  const auto got = testing::virtual_reduce(
      spec, {{{0, 0}, {nan, 1e-5F}, {1e-9F, -infinity}}, {{-0.0F, 0}, {1e-5F, 1e-5F}, {1e-9F, 1}}},
      &reports);
  EXPECT_EQ(got[0], (std::vector<float>{0, 0}));
  EXPECT_EQ(reports[0].shift, 0);
  EXPECT_TRUE(std::isnan(got[1][0]));
  EXPECT_GT(got[1][1], 1.9e-5F);
  EXPECT_EQ(reports[1].non_finite, 1);
  EXPECT_EQ(got[2][1], -infinity);
  EXPECT_EQ(got[2][0], 0);
  EXPECT_EQ(reports[2].underflowed, 2);
  EXPECT_EQ(reports[2].overflowed, 0);
}

TEST(VirtualReduce, ReportsOverflow) {
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  std::vector<TensorReport> reports;
  const auto got = testing::virtual_reduce(spec, {{{200, 1}}, {{200, 1}}}, &reports);
  EXPECT_TRUE(std::isinf(got[0][0]));
  EXPECT_EQ(reports[0].overflowed, 1);
}

TEST(VirtualReduce, CountsEveryValueOfALongLayer) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Values that e4m3 holds exactly, values that it rounds to zero, and values that are not finite.
  const std::vector<float> kinds = {1,      0,       -0.0F, -240,  0x1p-9F,   1e-30F,    -1e-30F,
                                    1e-40F, -1e-45F, kNan,  -kNan, kInfinity, -kInfinity};
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  for (const std::size_t copies : {1U, 313U, 700U, 5000U}) {
    std::vector<float> layer;
    for (std::size_t i = 0; i < copies; ++i) layer.insert(layer.end(), kinds.begin(), kinds.end());
    std::vector<TensorReport> reports;
    testing::virtual_reduce(spec, {{layer}, {layer}, {layer}}, &reports);
    EXPECT_EQ(reports[0].non_finite, static_cast<std::int64_t>(3 * 4 * copies));
    EXPECT_EQ(reports[0].underflowed, static_cast<std::int64_t>(3 * 4 * copies));
    EXPECT_EQ(reports[0].zeros, static_cast<std::int64_t>(3 * 6 * copies));
  }
}

/// The library counts zeros in ranges of limited length. The count must be right if a codec's block
/// is longer than such a range.
TEST(VirtualReduce, CountsTheZerosOfLongBlocks) {
  Reduce spec;
  spec.wire = MakeCodec("qsgd bits=3 bucket=65536");
  std::vector<float> layer(65536);
  layer[5] = 1;
  std::vector<TensorReport> reports;
  testing::virtual_reduce(spec, {{layer}, {layer}}, &reports);
  EXPECT_EQ(reports[0].zeros, 2 * 65535);
}

/// If the ranks' values remain unchanged until the end, several ranks are added at a time. The
/// order of addition and the counts must not change.
TEST(VirtualReduce, RanksThatStayAreAddedTogether) {
  const Ranks ranks = testing::random_ranks(35, {9000, 0, 70}, 5);
  for (const Accumulator& accumulator : accumulators(ParseFormat("e5m2"))) {
    for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
      for (const int group : {0, 6}) {
        if (order == Order::tree && accumulator.scheme != Scheme::sequential) continue;
        Reduce spec;
        spec.format = ParseFormat("e4m3");
        spec.accumulator = accumulator;
        spec.result = accumulator.format;
        spec.order = order;
        spec.group_size = group;
        spec.average = group == 6;
        spec.divide = Divide::before;
        if (spec.average) spec.rounding.mode = Rounding::stochastic;
        std::vector<TensorReport> one_by_one, together;
        const testing::Layers expected =
            testing::virtual_reduce(spec, ranks, &one_by_one, testing::kCall);
        const testing::Layers got =
            testing::virtual_reduce(spec, ranks, &together, testing::kCall, true);
        for (std::size_t l = 0; l < expected.size(); ++l) {
          EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected[l]),
                                          std::span<const float>(got[l])))
              << ToString(accumulator) << ", order " << ToString(order) << ", groups of " << group;
          EXPECT_EQ(one_by_one[l].underflowed, together[l].underflowed);
          EXPECT_EQ(one_by_one[l].zeros, together[l].zeros);
        }
      }
    }
  }
}

/// The largest number of the result's format (fp16) has more significant bits than the
/// accumulator's format.
TEST(VirtualReduce, GroupsSaturateInAWiderResult) {
  Reduce spec;
  spec.format = spec.accumulator.format = ParseFormat("bf16");
  spec.accumulator.scheme = Scheme::kahan;
  spec.accumulator.rounding.overflow = Overflow::saturate;
  spec.result = ParseFormat("e5m10");
  spec.group_size = 2;
  const std::vector<float> layer(5, 40000.0F);
  const testing::Layers sums = testing::virtual_reduce(spec, {{layer}, {layer}, {layer}, {layer}});
  EXPECT_EQ(sums[0], std::vector<float>(5, 65504.0F));
}

TEST(VirtualReduce, ExchangesAreOfNoConsequence) {
  const Ranks ranks = random_ranks(7, 3);
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  spec.order = Order::ring;
  const auto plain = testing::virtual_reduce(spec, ranks);
  for (const Exchange exchange : {Exchange::gather, Exchange::ring}) {
    spec.exchange = exchange;
    EXPECT_EQ(testing::virtual_reduce(spec, ranks), plain);
  }
  spec.group_size = 3;
  spec.exchange = Exchange::owner;
  const auto grouped = testing::virtual_reduce(spec, ranks);
  spec.exchange = Exchange::hierarchical;
  EXPECT_EQ(testing::virtual_reduce(spec, ranks), grouped);
}

TEST(VirtualReduce, RefusesMisuse) {
  const Reduce spec;
  EXPECT_THROW(VirtualReduce(spec, 0, {1}), Error);
  EXPECT_THROW(VirtualReduce(spec, 2, {-1}), Error);
  VirtualReduce two(spec, 2, {3});
  std::vector<float> x(3);
  std::vector<float> longer(4);
  EXPECT_THROW(two.Contribute(1, testing::view_of(x)), Error);
  EXPECT_THROW(two.Contribute(0, testing::view_of(longer)), Error);
  EXPECT_THROW(two.Result(0, testing::view_of(x)), Error);
  Reduce scaled;
  scaled.aps = Aps::on;
  VirtualReduce unobserved(scaled, 2, {3});
  unobserved.Observe(0, testing::view_of(x));
  EXPECT_THROW(unobserved.Contribute(0, testing::view_of(x)), Error);  // one rank is missing
}

// --- Who gives what ------------------------------------------------------------------------------

void expect_error(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << what;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

// Each rank must contribute each layer once. A missing layer would be replaced by the previous
// rank's values, and a repeated layer would count twice.
TEST(VirtualReduce, EachRankGivesEachLayerOnce) {
  const std::vector<float> x(5, 1.0f);
  const std::vector<float> y(3, 2.0f);
  for (const int group_size : {0, 2}) {
    Reduce spec;
    spec.group_size = group_size;
    VirtualReduce reduce(spec, 2, {5, 3});
    reduce.Contribute(1, testing::view_of(y));  // in any order
    expect_error("rank 0 has contributed tensor 1 before",
                 [&] { reduce.Contribute(1, testing::view_of(y)); });
    expect_error("rank 0 has not contributed tensor 0 yet", [&] { reduce.EndRank(); });
    reduce.Contribute(0, testing::view_of(x));
    reduce.EndRank();
    expect_error("rank 1 has not contributed tensor 0 yet", [&] { reduce.EndRank(); });
    reduce.Contribute(0, testing::view_of(x));
    reduce.Contribute(1, testing::view_of(y));
    reduce.EndRank();
    std::vector<float> out(5);
    reduce.Result(0, testing::view_of(out));
    EXPECT_EQ(out, std::vector<float>(5, 2.0f));
    expect_error("every rank of the schedule has contributed",
                 [&] { reduce.Contribute(0, testing::view_of(x)); });
    expect_error("every rank of the schedule has contributed", [&] { reduce.EndRank(); });
  }
}

TEST(VirtualReduce, EachRankIsObservedOnce) {
  Reduce spec;
  spec.aps = Aps::on;
  VirtualReduce reduce(spec, 2, {2});
  const std::vector<float> x(2, 1.0f);
  reduce.Observe(0, testing::view_of(x));
  reduce.Observe(0, testing::view_of(x));
  expect_error("tensor 0 was observed on all 2 ranks",
               [&] { reduce.Observe(0, testing::view_of(x)); });
}

}  // namespace
}  // namespace cpd
