// SPDX-License-Identifier: Apache-2.0
//
// Tests 1-bit SGD: sums that overflow binary32, large layers, and the codec's text form.
// tests/python/compress/test_one_bit.py compares bytes, values and residuals with the definition.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/one_bit.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/damage.h"
#include "tests/testing/feedback_calls.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using testing::decoded_piece;
using testing::encoded_piece;
using testing::kNan;
using testing::layer_of;
using testing::same;
using testing::sent_values;
using Bytes = std::vector<std::uint8_t>;
using Values = std::vector<float>;

/// Returns the 1-bit codec for buckets of `bucket` consecutive values or, if `columns` is true, for
/// the columns of a layer whose rows have `bucket` values.
SharedCodec codec_of(std::int64_t bucket, bool columns) {
  if (columns) return OneBit::Columns()->ForRows(bucket);
  return std::make_shared<OneBit>(bucket);
}

/// Layers of kStreamingFrom values or more store their errors with instructions that bypass the
/// caches. The first buckets of such a layer have the bytes and errors of a small layer.
TEST(OneBit, LargeLayers) {
  constexpr std::size_t kSize = (std::size_t{1} << 21) + 1003;
  const Values x = sent_values(kSize, 1);
  const Values before = sent_values(kSize, 2);
  const auto call = [&](const Codec& codec, std::size_t n) {
    const Values values(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    const Piece layer = layer_of(values);
    const auto state = codec.MakeState(layer.n);
    state->Restore(std::span(before).first(n));
    state->Begin(layer, values.data());
    Bytes bytes = encoded_piece(codec, *state, layer, values);
    state->Commit();
    return std::pair(std::move(bytes), state->Kept());
  };
  for (const bool columns : {false, true}) {
    for (const std::int64_t bucket : {64, 100, 4096, 65536}) {
      const SharedCodec codec = codec_of(bucket, columns);
      const auto few = static_cast<std::ptrdiff_t>(codec->block() * (1'000'000 / codec->block()));
      for (const std::string& backend : testing::backends()) {
        SCOPED_TRACE(backend + ", bucket " + std::to_string(bucket));
        const testing::WithBackend with(backend);
        const auto [bytes, kept] = call(*codec, kSize);
        const auto [bytes_of_few, kept_of_few] = call(*codec, static_cast<std::size_t>(few));
        EXPECT_TRUE(std::ranges::equal(bytes_of_few, std::span(bytes).first(bytes_of_few.size())));
        EXPECT_TRUE(same({kept.begin(), kept.begin() + few}, kept_of_few));
        // The last bucket is incomplete, and its length is not a multiple of a SIMD vector.
        const auto last = static_cast<std::ptrdiff_t>(kSize / bucket * bucket);
        const Values end(x.begin() + last, x.end());
        const auto state = codec->MakeState(static_cast<std::int64_t>(end.size()));
        state->Restore(std::span(before).subspan(static_cast<std::size_t>(last)));
        state->Begin(layer_of(end), end.data());
        encoded_piece(*codec, *state, layer_of(end), end);
        state->Commit();
        EXPECT_TRUE(same(state->Kept(), {kept.begin() + last, kept.end()}));
      }
    }
  }
}

/// If the sum of a value and its residual overflows binary32, the sum is an infinity.
TEST(OneBit, SumsBeyondBinary32) {
  const float most = std::numeric_limits<float>::max();
  const Values x(64, most);
  const OneBit codec(64);
  const auto state = codec.MakeState(64);
  state->Begin(layer_of(x), x.data());
  const Bytes bytes = encoded_piece(codec, *state, layer_of(x), x);
  EXPECT_TRUE(same(x, decoded_piece(codec, layer_of(x), bytes)));
  state->Commit();
  EXPECT_TRUE(same(Values(64), state->Kept()));
  state->Restore(x);
  const Values nan =
      decoded_piece(codec, layer_of(x), encoded_piece(codec, *state, layer_of(x), x));
  EXPECT_TRUE(same(Values(64, kNan), nan));
  state->Commit();
  EXPECT_TRUE(same(x, state->Kept()));
}

/// Flips each bit of a message in turn. Every decoded value must still be one of the two means that
/// the message holds for its bucket.
TEST(OneBit, ValuesAreMeansOfTheirBucket) {
  const Values x = sent_values(90, 2);
  for (const SharedCodec& codec : {codec_of(64, false), codec_of(40, true)}) {
    const auto state = codec->MakeState(90);
    state->Begin(layer_of(x), x.data());
    testing::for_each_flip(
        encoded_piece(*codec, *state, layer_of(x), x), [&](std::span<const std::uint8_t> changed) {
          const Values y = decoded_piece(*codec, layer_of(x), changed);
          for (std::size_t i = 0; i < y.size(); ++i) {
            const std::size_t b = i / static_cast<std::size_t>(codec->bucket());
            float means[2];
            std::memcpy(means, changed.data() + 8 * b, 8);
            for (float& mean : means) mean = std::isnan(mean) ? kNan : mean;
            EXPECT_TRUE(testing::same_bits(y[i], means[0]) || testing::same_bits(y[i], means[1]));
          }
        });
  }
}

TEST(OneBit, Texts) {
  for (const char* text : {"one_bit", "one_bit axis=-1", "one_bit axis=2", "one_bit bucket=64",
                           "one_bit bucket=64 axis=0"}) {
    const SharedCodec codec = MakeCodec(text);
    EXPECT_EQ(codec->text(), text);
    EXPECT_EQ(codec->by_rows(), codec->name() != "one_bit bucket=64");
    EXPECT_TRUE(codec->has_scales());
    EXPECT_TRUE(codec->has_nan());
  }
  EXPECT_EQ(OneBit(64).ForRows(100), nullptr);
  const SharedCodec columns = OneBit::Columns(1)->ForRows(100);
  EXPECT_EQ(columns->text(), "one_bit axis=1 of columns of 100");
  EXPECT_EQ(columns->bucket(), 100);
  EXPECT_FALSE(columns->by_rows());
  EXPECT_EQ(OneBit::Columns()->ForRows(100'000)->bucket(), kMostBucket);
  const SharedCodec buckets = MakeCodec("one_bit axis=1 bucket=64")->ForRows(100);
  EXPECT_EQ(buckets->text(), "one_bit bucket=64 axis=1 of columns of 100");
  EXPECT_EQ(buckets->ForResults(kFp32, 4)->text(), buckets->text());
  EXPECT_EQ(buckets->bucket(), 64);
  EXPECT_EQ(buckets->MostBytes(6400), OneBit(64).MostBytes(6400));
  EXPECT_FALSE(buckets->by_rows());
  EXPECT_EQ(dynamic_cast<const OneBit&>(*MakeCodec("one_bit axis=-2")).axis(), -2);
  EXPECT_EQ(dynamic_cast<const OneBit&>(*MakeCodec("one_bit")).axis(), std::nullopt);
  EXPECT_REFUSAL("bucket must be an integer 1…65536, got '0'", MakeCodec("one_bit bucket=0"));
  EXPECT_REFUSAL("bucket must be 1…65536, got 65537", OneBit(65537));
  EXPECT_REFUSAL("'64' is no option in 'one_bit 64': it takes bucket=, whole=, axis=",
                 MakeCodec("one_bit 64"));
  EXPECT_REFUSAL("a residual of 3 values cannot be one of 2",
                 OneBit(64).MakeState(3)->Restore(Values(2)));
}

}  // namespace
}  // namespace cpd
