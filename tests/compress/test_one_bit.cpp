// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD compared with its definition: bytes, values and residuals over several calls, on every
// backend. Pieces, NaN, results, damage and the floating-point environment change nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/one_bit.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/feedback_calls.h"
#include "tests/testing/flushing.h"

namespace cpd {
namespace {

using testing::decoded_piece;
using testing::encoded_piece;
using testing::layer_of;
using testing::sent_values;
using Bytes = std::vector<std::uint8_t>;
using Values = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// sum / count rounded once to binary32: numbers halfway between binary32 numbers, times a count,
/// are binary64 numbers, so that comparisons with them are exact.
float nearest_quotient(double sum, std::int64_t count) {
  const auto n = static_cast<double>(count);
  auto nearest = static_cast<float>(sum / n);
  for (const float toward : {-HUGE_VALF, HUGE_VALF}) {
    const float next = std::nextafter(nearest, toward);
    const double middle = (static_cast<double>(nearest) + static_cast<double>(next)) / 2;
    const bool beyond = toward < 0 ? sum < middle * n : sum > middle * n;
    const bool tie = sum == middle * n && (testing::bits_of(nearest) & 1) != 0;
    if (beyond || tie) nearest = next;
  }
  return nearest;
}

/// A layer by the definition.
struct Oracle {
  std::int64_t bucket;
  Values v, above, below, values, next;

  Oracle(const Values& x, int shift, const Values& residual, std::int64_t of_bucket)
      : bucket(of_bucket), v(testing::with_residual(x, shift, residual)) {
    for (std::size_t begin = 0; begin < v.size(); begin += static_cast<std::size_t>(bucket)) {
      const std::size_t end = std::min(v.size(), begin + static_cast<std::size_t>(bucket));
      double sums[2] = {0, 0};
      std::int64_t counts[2] = {0, 0};
      bool finite = true;
      for (std::size_t i = begin; i < end; ++i) {
        sums[v[i] >= 0] += v[i];
        ++counts[v[i] >= 0];
        finite = finite && std::isfinite(v[i]);
      }
      float means[2];
      for (int k = 0; k < 2; ++k) {
        means[k] = !finite ? kNan : counts[k] == 0 ? 0 : nearest_quotient(sums[k], counts[k]);
      }
      below.push_back(means[0]);
      above.push_back(means[1]);
      for (std::size_t i = begin; i < end; ++i) {
        values.push_back(means[v[i] >= 0]);
        next.push_back(finite ? v[i] - values[i] : residual[i]);
      }
    }
  }

  /// A block of a piece; `words`: the bits of each bucket fill 32-bit words.
  [[nodiscard]] Bytes Block(std::int64_t begin, std::int64_t n, bool words) const {
    Bytes bytes;
    const auto put = [&](float mean) {
      std::uint8_t four[4];
      std::memcpy(four, &mean, 4);
      bytes.insert(bytes.end(), four, four + 4);
    };
    const std::int64_t end = (begin + n + bucket - 1) / bucket;
    for (std::int64_t b = begin / bucket; b < end; ++b) {
      put(above[static_cast<std::size_t>(b)]);
      put(below[static_cast<std::size_t>(b)]);
    }
    std::int64_t bit = 0;
    for (std::int64_t i = begin; i < begin + n; ++i, ++bit) {
      if (words && i != begin && i % bucket == 0) bit = (bit + 31) / 32 * 32;
      while (bit / 8 >= static_cast<std::int64_t>(bytes.size()) - 8 * (end - begin / bucket)) {
        bytes.insert(bytes.end(), words ? 4 : 1, 0);
      }
      const auto at = static_cast<std::size_t>(8 * (end - begin / bucket) + bit / 8);
      if (v[static_cast<std::size_t>(i)] >= 0) {
        bytes[at] = static_cast<std::uint8_t>(bytes[at] | 1U << bit % 8);
      }
    }
    return bytes;
  }
  [[nodiscard]] Bytes Encode(const Codec& codec, const Piece& piece, bool words) const {
    Bytes all;
    for (std::int64_t i = 0; i < piece.n; i += codec.block()) {
      const Bytes one = Block(piece.begin + i, std::min(codec.block(), piece.n - i), words);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  [[nodiscard]] Values Of(const Piece& piece) const {
    return {values.begin() + piece.begin, values.begin() + piece.begin + piece.n};
  }
};

::testing::AssertionResult same(const Values& expected, const Values& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

/// Of buckets of consecutive values, or of columns.
SharedCodec codec_of(std::int64_t bucket, bool columns) {
  if (columns) return OneBit::Columns()->ForRows(bucket);
  return std::make_shared<OneBit>(bucket);
}

std::string what(const auto& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OneBit, CallsAreTheStepsOnEveryBackend) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend with(backend);
    for (const std::int64_t bucket : {1, 3, 7, 8, 13, 64, 65, 100, 512, 4095, 5000, 65536}) {
      for (const std::size_t n : {0, 1, 63, 64, 700, 9001}) {
        for (const bool columns : {false, true}) {
          SCOPED_TRACE(backend + ", bucket " + std::to_string(bucket) + ", n " + std::to_string(n) +
                       (columns ? ", columns" : ""));
          const SharedCodec codec = codec_of(bucket, columns);
          const auto state = codec->MakeState(static_cast<std::int64_t>(n));
          Values residual(n);
          for (std::uint32_t call = 0; call < 3; ++call) {
            const Values x = sent_values(n, 5 * call + static_cast<std::uint32_t>(bucket));
            const int shift = call == 2 ? -3 : 0;
            const Piece layer = layer_of(x, shift);
            const Oracle oracle(x, shift, residual, bucket);
            state->Begin(layer, x.data());
            const Bytes bytes = encoded_piece(*codec, *state, layer, x);
            ASSERT_EQ(bytes, oracle.Encode(*codec, layer, columns));
            ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), codec->MostBytes(layer.n));
            ASSERT_TRUE(same(oracle.values, decoded_piece(*codec, layer, bytes)));
            state->Commit();
            ASSERT_TRUE(same(oracle.next, state->Kept()));
            residual = oracle.next;
          }
        }
      }
    }
  }
}

/// From kStreamingFrom values on errors go past the caches.
TEST(OneBit, LargeLayers) {
  constexpr std::size_t kSize = (std::size_t{1} << 21) + 1003;
  const Values x = sent_values(kSize, 1);
  const Values before = sent_values(kSize, 2);
  for (const bool columns : {false, true}) {
    for (const std::int64_t bucket : {64, 100, 4096, 65536}) {
      const Oracle oracle(x, 0, before, bucket);
      const SharedCodec codec = codec_of(bucket, columns);
      const Piece layer = layer_of(x);
      const Bytes expected = oracle.Encode(*codec, layer, columns);
      for (const std::string& backend : testing::backends()) {
        SCOPED_TRACE(backend + ", bucket " + std::to_string(bucket));
        const testing::WithBackend with(backend);
        const auto state = codec->MakeState(layer.n);
        state->Restore(before);
        state->Begin(layer, x.data());
        const Bytes bytes = encoded_piece(*codec, *state, layer, x);
        ASSERT_EQ(bytes, expected);
        ASSERT_TRUE(same(oracle.values, decoded_piece(*codec, layer, bytes)));
        state->Commit();
        ASSERT_TRUE(same(oracle.next, state->Kept()));
      }
    }
  }
}

TEST(OneBit, PiecesCutBucketsAndColumns) {
  const Values x = sent_values(9001, 3);
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend with(backend);
    for (const std::int64_t bucket : {1, 3, 64, 100, 4095, 65536}) {
      for (const bool columns : {false, true}) {
        SCOPED_TRACE(backend + ", bucket " + std::to_string(bucket));
        const SharedCodec codec = codec_of(bucket, columns);
        const auto state = codec->MakeState(9001);
        const Values before = sent_values(9001, 4);
        state->Restore(before);
        const Oracle oracle(x, 0, before, bucket);
        const Piece layer = layer_of(x);
        state->Begin(layer, x.data());
        for (const Piece& piece : testing::growing_pieces(layer)) {
          const Bytes bytes = encoded_piece(*codec, *state, piece, x);
          EXPECT_EQ(bytes, oracle.Encode(*codec, piece, columns));
          EXPECT_EQ(static_cast<std::int64_t>(bytes.size()),
                    codec->MostBytes(piece.n, piece.begin % bucket));
          EXPECT_TRUE(same(oracle.Of(piece), decoded_piece(*codec, piece, bytes)));
          Values rounded(static_cast<std::size_t>(piece.n));
          codec->Round(piece, state.get(), x.data() + piece.begin, rounded.data());
          EXPECT_TRUE(same(oracle.Of(piece), rounded));
        }
        EXPECT_TRUE(same(before, state->Kept()));
        state->Commit();
        EXPECT_TRUE(same(oracle.next, state->Kept()));
      }
    }
  }
}

TEST(OneBit, SizesAddByBlocks) {
  for (const std::int64_t bucket : {1, 3, 64, 100, 512, 5000, 65536}) {
    for (const bool columns : {false, true}) {
      const SharedCodec codec = codec_of(bucket, columns);
      const std::int64_t block = codec->block();
      EXPECT_EQ(block % 8, 0);
      EXPECT_EQ(block % codec->bucket(), 0);
      EXPECT_GE(block, 4096);
      for (const std::int64_t before : {std::int64_t{0}, bucket / 2, bucket - 1}) {
        for (const std::int64_t rest : {std::int64_t{0}, std::int64_t{1}, block - 1}) {
          EXPECT_EQ(codec->MostBytes(3 * block + rest, before),
                    3 * codec->MostBytes(block, before) + codec->MostBytes(rest, before));
        }
      }
    }
  }
}

/// 32 M / (32 ceil(M / 32) + 64) of binary32's bits, for columns of M.
TEST(OneBit, ColumnsHaveThePapersRatio) {
  for (const std::int64_t column : {1, 3, 31, 32, 33, 64, 512, 1000}) {
    const SharedCodec codec = codec_of(column, true);
    for (const std::int64_t columns : {1, 5, 3000}) {
      const std::int64_t words = (column + 31) / 32;
      EXPECT_EQ(8 * codec->MostBytes(columns * column), columns * (32 * words + 64));
    }
  }
  // 1.0, 16, 28.4
  EXPECT_EQ(codec_of(3, true)->MostBytes(3 * 4096), 4 * 3 * 4096);
  EXPECT_EQ(16 * codec_of(64, true)->MostBytes(64 * 4096), 4 * 64 * 4096);
  EXPECT_NEAR(4.0 * 512 * 512 / static_cast<double>(codec_of(512, true)->MostBytes(512 * 512)),
              28.4, 0.05);
  // Buckets are not padded: two means and 100 bits each, of 40 values together.
  EXPECT_EQ(OneBit(100).MostBytes(4000), 40 * 8 + 4000 / 8);
}

TEST(OneBit, MeansAreRoundedOnce) {
  // Of three values the sum is 3 m, m halfway between 1 and the next binary32, and numbers beside.
  const SharedCodec codec = std::make_shared<OneBit>(3);
  for (const float tail : {0.0F, 0x1p-49F, -0x1p-49F, 0x1p-51F, -0x1p-51F}) {
    for (const float sign : {1.0F, -1.0F}) {
      const Values x{sign * 2, sign * (1 + 0x1.8p-23F + tail), sign * tail};
      const Oracle oracle(x, 0, Values(3), 3);
      const auto state = codec->MakeState(3);
      state->Begin(layer_of(x), x.data());
      EXPECT_EQ(encoded_piece(*codec, *state, layer_of(x), x),
                oracle.Encode(*codec, layer_of(x), false));
    }
  }
  EXPECT_EQ(nearest_quotient(3 + 0x1.8p-23, 3), 1.0F);  // a tie goes to even
  EXPECT_EQ(nearest_quotient(3 + 0x1.8p-23 + 0x1p-51, 3), 1 + 0x1p-23F);
  EXPECT_EQ(nearest_quotient(0x1.8p-148, 2), 0x1p-148F);  // subnormal, a tie
}

TEST(OneBit, NanAndInfinitiesStayInTheirBucket) {
  for (const float bad : {kNan, -kNan, HUGE_VALF, -HUGE_VALF}) {
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend with(backend);
      Values x = sent_values(1000, 8);
      x[130] = bad;
      const Values residual = sent_values(1000, 9);
      for (const std::int64_t bucket : {3, 64, 100}) {
        const OneBit codec(bucket);
        const auto state = codec.MakeState(1000);
        state->Restore(residual);
        const Piece layer = layer_of(x);
        state->Begin(layer, x.data());
        const Bytes bytes = encoded_piece(codec, *state, layer, x);
        const Values y = decoded_piece(codec, layer, bytes);
        state->Commit();
        const Values kept = state->Kept();
        const Oracle oracle(x, 0, residual, bucket);
        EXPECT_TRUE(same(oracle.values, y));
        EXPECT_TRUE(same(oracle.next, kept));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const bool in_it =
              i / static_cast<std::size_t>(bucket) == 130 / static_cast<std::size_t>(bucket);
          ASSERT_EQ(std::isnan(y[i]), in_it);
          ASSERT_TRUE(!in_it || testing::same_bits(kept[i], residual[i]));
        }
      }
    }
  }
}

/// A value that overflows with its residual is an infinity.
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

TEST(OneBit, ACallThatFailsLeavesNothing) {
  const Values x = sent_values(500, 1);
  const OneBit codec(64);
  const auto state = codec.MakeState(500);
  state->Begin(layer_of(x), x.data());
  const Bytes once = encoded_piece(codec, *state, layer_of(x), x);
  EXPECT_EQ(encoded_piece(codec, *state, layer_of(x), x), once);
  state->Begin(layer_of(x), x.data());
  EXPECT_EQ(encoded_piece(codec, *state, layer_of(x), x), once);
  EXPECT_TRUE(same(Values(500), state->Kept()));
  state->Commit();
  EXPECT_NE(encoded_piece(codec, *state, layer_of(x), x), once);
}

TEST(OneBit, ThreadsShareALayer) {
  const Values x = sent_values(50000, 6);
  const SharedCodec codec = codec_of(100, true);
  const auto state = codec->MakeState(50000);
  const Oracle oracle(x, 0, Values(50000), 100);
  const Piece layer = layer_of(x);
  state->Begin(layer, x.data());
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Piece piece = layer;
      piece.begin = t * 12500 + (t > 0 ? 30 : 0);  // within a column
      piece.n = (t < 3 ? (t + 1) * 12500 + 30 : 50000) - piece.begin;
      EXPECT_EQ(encoded_piece(*codec, *state, piece, x), oracle.Encode(*codec, piece, true));
    });
  }
  for (std::thread& thread : threads) thread.join();
  state->Commit();
  EXPECT_TRUE(same(oracle.next, state->Kept()));
}

/// An owner encodes sums of its slice, which begins anywhere, with no layer around them.
TEST(OneBit, ResultsHaveAResidualOfTheirOwn) {
  const SharedCodec codec = OneBit::Columns()->ForRows(50)->ForResults(kFp32, 4);
  ASSERT_NE(codec, nullptr);
  EXPECT_EQ(codec->bucket(), 50);
  EXPECT_EQ(codec->block(), OneBit::Columns()->ForRows(50)->block());
  const auto state = codec->MakeState(330);
  Values residual(330);
  for (std::uint32_t call = 0; call < 3; ++call) {
    const Values x = sent_values(330, call);
    const Oracle oracle(x, 0, residual, 50);
    state->Begin({0, 1000, 330, 0}, nullptr);
    for (const auto& [begin, n] : {std::pair{0, 200}, std::pair{200, 130}}) {
      const Piece piece{0, 1000 + begin, n, 0};
      Bytes bytes(static_cast<std::size_t>(codec->MostBytes(n)));
      codec->Encode(piece, state.get(), x.data() + begin, bytes.data());
      EXPECT_EQ(bytes, oracle.Encode(*codec, {0, begin, n, 0}, true));
    }
    state->Commit();
    residual = oracle.next;
    EXPECT_TRUE(same(residual, state->Kept()));
  }
}

TEST(OneBit, DecodeUndoesTheScaleAndDivides) {
  const Values x = sent_values(300, 2);
  const OneBit codec(7);
  const auto state = codec.MakeState(300);
  state->Begin(layer_of(x), x.data());
  const Bytes bytes = encoded_piece(codec, *state, layer_of(x), x);
  Values expected = decoded_piece(codec, layer_of(x), bytes);
  for (float& value : expected) value = std::ldexp(value, -4) / 3.0F;
  EXPECT_TRUE(same(expected, decoded_piece(codec, layer_of(x), bytes, -4, 3)));
}

TEST(OneBit, BitFlipsAndTruncation) {
  const Values x = sent_values(90, 2);
  for (const SharedCodec& codec : {codec_of(64, false), codec_of(40, true)}) {
    const auto state = codec->MakeState(90);
    state->Begin(layer_of(x), x.data());
    const Bytes bytes = encoded_piece(*codec, *state, layer_of(x), x);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes changed = bytes;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      changed.shrink_to_fit();
      const Values y = decoded_piece(*codec, layer_of(x), changed);
      for (std::size_t i = 0; i < y.size(); ++i) {  // a value is a mean of its bucket
        const std::size_t b = i / static_cast<std::size_t>(codec->bucket());
        float means[2];
        std::memcpy(means, changed.data() + 8 * b, 8);
        for (float& mean : means) mean = std::isnan(mean) ? kNan : mean;
        EXPECT_TRUE(testing::same_bits(y[i], means[0]) || testing::same_bits(y[i], means[1]));
      }
    }
    for (std::size_t length = 0; length < bytes.size() + 9; ++length) {
      if (length == bytes.size()) continue;
      Bytes other = bytes;
      other.resize(length);
      other.shrink_to_fit();
      EXPECT_THROW(decoded_piece(*codec, layer_of(x), other), DamagedBytes) << length;
    }
  }
}

#if defined(CPD_TEST_FLUSHES)
TEST(OneBit, FlagsOfTheEnvironmentChangeNothing) {
  Values x = sent_values(900, 2);
  for (std::size_t i = 0; i < 400; ++i) x[i] *= 0x1p-130F;
  const SharedCodec codec = codec_of(64, false);
  const auto call = [&] {
    const auto state = codec->MakeState(900);
    state->Begin(layer_of(x, -1), x.data());
    const Bytes bytes = encoded_piece(*codec, *state, layer_of(x, -1), x);
    state->Commit();
    return std::pair(bytes, state->Kept());
  };
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend with(backend);
    const auto expected = call();
    const auto expected_values = decoded_piece(*codec, layer_of(x), expected.first, -1, 3);
    std::optional<testing::Flushing> flushing(std::in_place, true);
    const auto got = call();
    const auto values = decoded_piece(*codec, layer_of(x), expected.first, -1, 3);
    flushing.reset();
    EXPECT_EQ(got.first, expected.first);
    EXPECT_TRUE(same(expected.second, got.second));
    EXPECT_TRUE(same(expected_values, values));
  }
}
#endif

TEST(OneBit, Texts) {
  for (const char* text : {"one_bit", "one_bit axis=-1", "one_bit axis=2", "one_bit bucket=64",
                           "one_bit bucket=64 axis=0"}) {
    const SharedCodec codec = MakeCodec(text);
    EXPECT_EQ(codec->name(), text);
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
  EXPECT_EQ(what([] { MakeCodec("one_bit bucket=0"); }),
            "bucket must be an integer 1…65536, got '0'");
  EXPECT_EQ(what([] { OneBit(65537); }), "bucket must be 1…65536, got 65537");
  EXPECT_EQ(what([] { MakeCodec("one_bit 64"); }),
            "'64' is no option in 'one_bit 64': it takes bucket=, whole=, axis=");
  EXPECT_EQ(what([] { OneBit(64).MakeState(3)->Restore(Values(2)); }),
            "a residual of 3 values cannot be one of 2");
}

}  // namespace
}  // namespace cpd
