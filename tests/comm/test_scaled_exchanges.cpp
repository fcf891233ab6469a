// SPDX-License-Identifier: Apache-2.0
//
// Tests contributions in scaled formats. The virtual ranks give the sum of all ranks' cast layers,
// and every exchange has the bits, reports and bytes of the virtual ranks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpd/compress/scaled_blocks.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::expect_virtual;
using testing::options_of;
using testing::Ranks;
using testing::same_layers;
using testing::Way;
using testing::ways;

constexpr std::array kNames = {"mxfp8",      "nvfp4", "int5 7 scale=bf16",     "mxfp4",
                               "fp8-tensor", "bfp8",  "e2m1 900 scale=e4m3fn", "fp8-block"};

Reduce scaled_spec(const Way& way, std::size_t pick) {
  RoundingOptions rounding{.overflow = Overflow::saturate};
  if (pick % 3 == 1) rounding = {.mode = Rounding::stochastic, .overflow = Overflow::saturate};
  Reduce spec;
  spec.wire = std::make_shared<ScaledBlocks>(ParseScaled(kNames[pick % kNames.size()]), rounding);
  spec.rounding = rounding;
  spec.accumulator =
      testing::accumulators(way, kFp32)[pick % testing::accumulators(way, kFp32).size()];
  if (pick % 4 == 3) spec.result = ParseFormat("bf16");
  if (pick % 5 == 4) spec.loss_scale = 256;
  spec.average = pick % 2 == 1;
  spec.order = way.order;
  spec.exchange = way.exchange;
  spec.group_size = way.group;
  return spec;
}

/// Casts each rank's layers to the scaled format, and returns the reduction of the cast layers
/// without a codec.
testing::Layers sum_of_casts(Reduce spec, const char* name, const Ranks& ranks,
                             const TensorOptions& call) {
  Ranks casts = ranks;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t l = 0; l < ranks[r].size(); ++l) {
      const RandomKey key{call.seed,
                          StreamOf(Purpose::wire, call.step, static_cast<std::int64_t>(l),
                                   static_cast<std::int64_t>(r))};
      std::vector<float>& layer = casts[r][l];
      for (float& x : layer) x = static_cast<float>(x * spec.loss_scale);
      Cast(View(layer), ParseScaled(name), 0, spec.rounding, View(layer), {}, key);
      for (float& x : layer) x = static_cast<float>(x / spec.loss_scale);
    }
  }
  spec.wire = nullptr;
  spec.rounding = {};
  return testing::virtual_reduce(spec, casts, nullptr, call);
}

TEST(ScaledExchanges, VirtualRanksSumCasts) {
  const Ranks ranks = testing::random_ranks(5, {0, 1, 33, 257, 9000}, 3);
  std::size_t pick = 0;
  for (const Way& way : ways(5)) {
    for (int specs = 0; specs < 8; ++specs, ++pick) {
      const Reduce spec = scaled_spec(way, pick);
      const char* name = kNames[pick % kNames.size()];
      const TensorOptions call{.seed = pick, .step = pick % 7};
      EXPECT_TRUE(same_layers(sum_of_casts(spec, name, ranks, call),
                              testing::virtual_reduce(spec, ranks, nullptr, call)))
          << testing::describe(spec, 5) << ", " << spec.wire->text();
    }
  }
}

TEST(ScaledExchanges, EqualVirtualRanks) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 7, 8}) {
    if (testing::kSanitized && world > 3) continue;
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w + 1, 257, 5000}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < (testing::kSanitized ? 1 : 3); ++specs, ++pick) {
        const std::int64_t chunk = std::array{700, 6000, 1 << 20}[pick % 3];
        const Reduce spec = scaled_spec(way, pick);
        SCOPED_TRACE(spec.wire->text());
        expect_virtual(spec, ranks, options_of(chunk), pick % 2 == 0);
      }
    }
  }
}

TEST(ScaledExchanges, NanAndInfinity) {
  Ranks ranks = testing::random_ranks(4, {9, 70}, 6);
  ranks[0][1][7] = std::nanf("");
  ranks[2][1][0] = INFINITY;
  ranks[1][1][5] = INFINITY;
  ranks[2][1][5] = -INFINITY;
  for (const Way& way : ways(4)) {
    for (std::size_t pick = 0; pick < kNames.size(); ++pick) {
      const Reduce spec = scaled_spec(way, pick);
      SCOPED_TRACE(spec.wire->text());
      expect_virtual(spec, ranks, options_of(33));
    }
  }
}

TEST(ScaledExchanges, RefuseValuesOfAnotherFormat) {
  Reduce spec;
  spec.wire = std::make_shared<ScaledBlocks>(ParseScaled("mxfp8"));
  spec.format = ParseFormat("e5m2");
  try {
    Check(spec);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "format must be that of the values of codec '" + spec.wire->text() +
                                "', " + ToString(spec.wire->format()) + ", got e5m2");
  }
}

}  // namespace
}  // namespace cpd
