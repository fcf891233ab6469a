// SPDX-License-Identifier: Apache-2.0
//
// Tests error feedback around codecs of every kind: each call gives the inner codec's result for v
// = x + residual.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/feedback.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/feedback_calls.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using testing::decoded_piece;
using testing::encoded_piece;
using testing::layer_of;
using testing::same;
using testing::sent_values;
using Bytes = std::vector<std::uint8_t>;
using Values = std::vector<float>;

constexpr const char* kInner[] = {"e4m3",
                                  "e3m0",
                                  "mxfp8",
                                  "int4 32 scale=fp32",
                                  "fp8-tensor",
                                  "int4",
                                  "int8_rows row=100",
                                  "qsgd bits=2 bucket=128",
                                  "qsgd bits=4 bucket=tensor",
                                  "terngrad share=off"};

/// One call of the inner codec on v: its input, its values and the next residual.
struct Call {
  Piece layer;
  Values v, values, next;
  std::unique_ptr<CodecState> state;

  Call(const Codec& inner, const Values& x, int shift, std::uint64_t stream, const Values& residual)
      : layer(layer_of(x, 0, stream)),
        v(testing::with_residual(x, shift, residual)),
        values(x.size()),
        next(x.size()),
        state(inner.MakeState(layer.n)) {
    if (state != nullptr) state->Begin(layer, v.data());
    if (inner.measured() != Measured::nothing) {
      layer.scale = inner.Measure(layer, state.get(), v.data());
    }
    inner.Round(layer, state.get(), v.data(), values.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float error = v[i] - values[i];
      next[i] = std::isfinite(error) ? error : 0;
    }
  }

  [[nodiscard]] Bytes Encode(const Codec& inner, const Piece& piece) const {
    Bytes bytes(static_cast<std::size_t>(inner.MostBytes(piece.n, piece.begin % inner.bucket())));
    Piece of_v = piece;
    of_v.shift = 0;
    const float* from = v.data() + piece.begin;
    bytes.resize(static_cast<std::size_t>(inner.Encode(of_v, state.get(), from, bytes.data())));
    return bytes;
  }
};

TEST(Feedback, CallsAreTheInnerCodecsOfWhatIsFedBack) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend with(backend);
    for (const char* text : kInner) {
      for (const std::size_t n : {0, 1, 5000, 20011}) {
        SCOPED_TRACE(backend + ", " + text + ", n " + std::to_string(n));
        const SharedCodec inner = MakeCodec(text);
        const Feedback codec(inner);
        const auto state = codec.MakeState(static_cast<std::int64_t>(n));
        Values residual(n);
        for (std::uint32_t call = 0; call < 4; ++call) {
          const Values x = sent_values(n, call);
          const int shift = call == 3 ? 5 : 0;
          const Call expected(*inner, x, shift, call, residual);
          Piece layer = layer_of(x, shift, call);
          state->Begin(layer, x.data());
          if (codec.measured() != Measured::nothing) {
            layer.scale = codec.Measure(layer, state.get(), x.data());
            EXPECT_EQ(layer.scale, expected.layer.scale);
          }
          const Bytes bytes = encoded_piece(codec, *state, layer, x);
          EXPECT_EQ(bytes, expected.Encode(*inner, layer));
          EXPECT_TRUE(same(expected.values, decoded_piece(codec, layer, bytes)));
          EXPECT_TRUE(same(residual, state->Kept()));
          state->Commit();
          EXPECT_TRUE(same(expected.next, state->Kept()));
          residual = expected.next;
        }
      }
    }
  }
}

TEST(Feedback, GivenIntegersOfManyBlocks) {
  // Each bucket contains a 7, the largest int4 value, so the bucket's scale is 1. The value 1/2 is
  // rounded up if its random bit is 1.
  constexpr std::size_t n = 60000;
  Values x(n, 0.5F);
  for (std::size_t i = 0; i < n; i += 16) x[i] = 7;
  std::vector<std::uint32_t> random(n);
  for (std::size_t i = 0; i < n; ++i) random[i] = i % 7 == 0 || i > n / 2 ? 1 : 0;
  const SharedCodec codec = MakeCodec("feedback int4 stochastic", {.random_bits = 1});
  Piece layer = layer_of(x, 0, 1);
  const auto state = codec->MakeState(layer.n);
  state->Begin(layer, x.data());
  layer.random = random.data();
  Bytes bytes(static_cast<std::size_t>(codec->MostBytes(layer.n)));
  bytes.resize(static_cast<std::size_t>(codec->Encode(layer, state.get(), x.data(), bytes.data())));
  Values y(n);
  codec->Decode(bytes, layer.n, 0, 1, y.data());
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_EQ(y[i], i % 16 == 0 ? 7.0F : random[i] == 1 ? 1.0F : 0.0F) << i;
  }
}

TEST(Feedback, RoundInPlace) {
  for (const char* text : kInner) {
    const Feedback codec(MakeCodec(text));
    const Values x = sent_values(1000, 7);
    const auto state = codec.MakeState(1000);
    Piece layer = layer_of(x);
    state->Begin(layer, x.data());
    layer.scale = codec.Measure(layer, state.get(), x.data());
    Values expected(1000);
    codec.Round(layer, state.get(), x.data(), expected.data());
    state->Commit();
    const Values kept = state->Kept();
    state->Restore(Values(1000));
    Values y = x;
    state->Begin(layer, y.data());
    codec.Round(layer, state.get(), y.data(), y.data());
    EXPECT_TRUE(same(expected, y)) << text;
    state->Commit();
    EXPECT_TRUE(same(kept, state->Kept())) << text;
  }
}

/// 0.25 is a quarter of the distance between two int4 levels. Over eight calls, the values that are
/// sent add up to the values that were given.
TEST(Feedback, WhatIsSentAddsUpToWhatWasGiven) {
  const Feedback codec(MakeCodec("int4 4"));  // scales are powers of two
  const Values x{7, 0.25F, -0.25F, 0};
  const auto state = codec.MakeState(4);
  Values sum(4);
  for (int call = 0; call < 8; ++call) {
    state->Begin(layer_of(x), x.data());
    Values y(4);
    codec.Round(layer_of(x), state.get(), x.data(), y.data());
    state->Commit();
    for (std::size_t i = 0; i < 4; ++i) sum[i] += y[i];
  }
  EXPECT_TRUE(same({56, 2, -2, 0}, sum));
}

TEST(Feedback, NanAndInfinitiesLeaveNoResidual) {
  for (const char* text : {"e4m3", "qsgd bits=4 bucket=64", "int4", "mxfp8"}) {
    const Feedback codec(MakeCodec(text));
    Values x = sent_values(200, 3);
    x[70] = std::numeric_limits<float>::quiet_NaN();
    x[150] = -HUGE_VALF;
    const auto state = codec.MakeState(200);
    state->Begin(layer_of(x), x.data());
    Values y(200);
    codec.Round(layer_of(x), state.get(), x.data(), y.data());
    EXPECT_TRUE(std::isnan(y[70])) << text;
    EXPECT_FALSE(std::isfinite(y[150])) << text;
    state->Commit();
    for (const float kept : state->Kept()) EXPECT_TRUE(std::isfinite(kept)) << text;
    EXPECT_EQ(state->Kept()[70], 0) << text;
    EXPECT_EQ(state->Kept()[150], 0) << text;
  }
}

TEST(Feedback, IsTheInnerCodecElsewhere) {
  for (const char* text : kInner) {
    const SharedCodec inner = MakeCodec(text);
    const SharedCodec codec = MakeCodec(std::string("feedback ") + text);
    EXPECT_EQ(codec->name(), "feedback " + inner->name());
    EXPECT_EQ(codec->text(), "feedback " + inner->text());
    EXPECT_EQ(codec->block(), inner->block());
    EXPECT_EQ(codec->bucket(), inner->bucket());
    EXPECT_EQ(codec->is_fixed(), inner->is_fixed());
    EXPECT_EQ(codec->has_nan(), inner->has_nan());
    EXPECT_EQ(codec->measured(), inner->measured());
    EXPECT_EQ(codec->MostBytes(5000, 0), inner->MostBytes(5000, 0));
    EXPECT_EQ(codec->ForSums(kFp32)->text(), inner->ForSums(kFp32)->text());
    EXPECT_TRUE(codec->has_scales());
    EXPECT_FALSE(codec->may_hop());
    const std::vector<std::uint8_t> none;
    EXPECT_THROW(codec->Decode(none, 5, 0, 1, nullptr), DamagedBytes);
  }
  EXPECT_EQ(MakeCodec("feedback e4m3")->ForResults(kFp32, 4), nullptr);
  const SharedCodec results = MakeCodec("feedback qsgd")->ForResults(kFp32, 4);
  EXPECT_EQ(results->text(), "feedback " + MakeCodec("qsgd")->ForResults(kFp32, 4)->text());
  const SharedCodec rows = MakeCodec("feedback int8_rows");
  EXPECT_TRUE(rows->by_rows());
  EXPECT_EQ(rows->ForRows(77)->text(), "feedback " + MakeCodec("int8_rows")->ForRows(77)->text());
}

TEST(Feedback, Refused) {
  const std::string takes_no = "feedback takes no codec that ";
  EXPECT_REFUSAL("feedback takes a codec, as in 'feedback int4 32 scale=fp32'",
                 MakeCodec("feedback"));
  EXPECT_REFUSAL(takes_no + "feeds its errors back by itself, got 'one_bit bucket=64'",
                 MakeCodec("feedback one_bit bucket=64"));
  EXPECT_REFUSAL(takes_no + "feeds its errors back by itself, got 'feedback e4m3'",
                 MakeCodec("feedback feedback e4m3"));
  EXPECT_REFUSAL(takes_no + "takes a scale which ranks share, got 'terngrad clip=2.5'",
                 MakeCodec("feedback terngrad"));
}

/// In version 0.7 a codec's text contained the seed. States that were stored with such a text still
/// load, and the seed in the text is ignored.
TEST(Feedback, StatesWithASeedInTheirTextLoad) {
  const SharedCodec codec = MakeCodec("feedback qsgd bits=4 bucket=64");
  const Values kept{1, 2, 3};
  for (const char* seed : {"", " seed=9"}) {
    CodecStates states;
    states.Load({{CodecStates::Key{}, {codec->text() + seed, 3, kept}}});
    EXPECT_EQ(states.Of(*codec, {}, 3)->Kept(), kept);
  }
}

}  // namespace
}  // namespace cpd
