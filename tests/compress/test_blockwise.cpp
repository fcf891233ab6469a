// SPDX-License-Identifier: Apache-2.0
//
// Tests the codecs that divide a layer into blocks of 4096 values. Each block must give the result
// that the inner codec, or a cast, gives for the block alone. A block with NaN becomes all NaN if
// the inner codec has no NaN. Tests also refused arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/blockwise.h"
#include "cpd/compress/codecs.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::same;

constexpr std::int64_t kBucket = Blockwise::kBucket;
constexpr std::uint64_t kStream = 17;
constexpr std::int64_t kSize = 2 * kBucket + 999;

/// Returns a layer whose blocks have values of very different magnitudes.
std::vector<float> layer() {
  std::vector<float> x =
      testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), std::size_t{kSize}, 3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(x[i] * 1.0078125F, static_cast<int>(i / kBucket) * 9 - 5);
  }
  return x;
}

/// Encodes the values begin … begin + n - 1 of x, and returns the decoded values.
std::vector<float> coded(const Codec& codec, const std::vector<float>& x, std::int64_t begin,
                         std::int64_t n) {
  const std::int64_t before = begin % codec.bucket();
  Piece piece{.begin = begin, .n = n, .key = {.seed = 5, .stream = kStream}};
  piece.size = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(n, before)));
  const std::int64_t used = codec.Encode(piece, nullptr, x.data() + begin, bytes.data());
  EXPECT_TRUE(used == codec.MostBytes(n, before) || !codec.is_fixed());
  bytes.resize(static_cast<std::size_t>(used));
  std::vector<float> y(static_cast<std::size_t>(n));
  codec.Decode(bytes, n, 0, 1, y.data(), before);
  return y;
}

std::vector<float> coded(const Codec& codec, const std::vector<float>& x) {
  return coded(codec, x, 0, static_cast<std::int64_t>(x.size()));
}

/// Calls bucket(begin, values) once for each bucket of x, and concatenates the results.
template <class Bucket>
std::vector<float> by_bucket(const std::vector<float>& x, Bucket bucket) {
  std::vector<float> all;
  for (std::int64_t i = 0; i < kSize; i += kBucket) {
    const std::int64_t end = std::min(kSize, i + kBucket);
    const std::vector<float> y = bucket(i, std::vector<float>(x.begin() + i, x.begin() + end));
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

TEST(Blockwise, ScaledFormatsAreCastBucketByBucket) {
  const std::vector<float> x = layer();
  for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
    RoundingOptions rounding{.mode = mode, .overflow = Overflow::saturate, .random_bits = 11};
    for (const char* text : {"nvfp4", "fp8-tensor", "mxfp8"}) {
      const auto wanted = by_bucket(x, [&](std::int64_t begin, std::vector<float> values) {
        std::vector<std::uint32_t> random(values.size());
        for (std::size_t i = 0; i < random.size(); ++i) {
          random[i] = random_integer(11, 5, kStream, static_cast<std::uint64_t>(begin) + i);
        }
        const TensorView integers =
            View(random.data(), DType::u32, static_cast<std::int64_t>(random.size()));
        Cast(View(values), ParseScaled(text), 0, rounding, View(values), {}, {},
             mode == Rounding::stochastic ? &integers : nullptr);
        return values;
      });
      const auto codec = MakeCodec("blockwise " + std::string(text), rounding);
      EXPECT_TRUE(same(wanted, coded(*codec, x))) << text;
    }
  }
}

TEST(Blockwise, OtherCodecsAreThoseOfEachBucket) {
  const std::vector<float> x = layer();
  for (const char* text : {"uniform bits=7", "uniform bits=5 coding=fixed"}) {
    const auto inner = MakeCodec(text);
    const auto wanted = by_bucket(x, [&](std::int64_t /*begin*/, const std::vector<float>& values) {
      const auto n = static_cast<std::int64_t>(values.size());
      const Piece all{.n = n, .key = {.stream = kStream}, .size = n};
      const auto state = inner->MakeState(n);
      state->Begin(all, values.data());
      std::vector<float> y(values.size());
      inner->Round(all, state.get(), values.data(), y.data());
      return y;
    });
    const auto codec = MakeCodec("blockwise " + std::string(text));
    EXPECT_TRUE(same(wanted, coded(*codec, x))) << text;
  }
}

TEST(Blockwise, NanWhereTheInnerCodecHasNone) {
  std::vector<float> x = layer();
  x[5000] = std::numeric_limits<float>::infinity();
  const auto codec = MakeCodec("blockwise nvfp4");
  EXPECT_TRUE(codec->has_nan());
  const std::vector<float> y = coded(*codec, x);
  for (std::int64_t i = 0; i < kSize; ++i) {
    const bool poisoned = i / kBucket == 1;
    ASSERT_EQ(std::isnan(y[static_cast<std::size_t>(i)]), poisoned) << i;
  }
  const std::vector<float> cut = coded(*codec, x, 5100, 700);
  EXPECT_TRUE(std::isnan(cut[0]));
}

TEST(Blockwise, Refuses) {
  for (const auto& [text, part] : {
           std::pair{"blockwise", "as in 'blockwise nvfp4'"},
           std::pair{"blockwise e4m3", "has no scale: give result="},
           std::pair{"blockwise qsgd", "says by itself how sums travel"},
           std::pair{"blockwise terngrad", "takes a scale that ranks share"},
           std::pair{"blockwise terngrad bucket=64", "has buckets or rows of its own"},
           std::pair{"blockwise blockwise nvfp4", "says by itself how sums travel"},
           std::pair{"blockwise feedback nvfp4", "feeds its errors back"},
       }) {
    try {
      (void)MakeCodec(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace cpd
