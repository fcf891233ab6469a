// SPDX-License-Identifier: Apache-2.0
//
// Tests that the values of every codec do not depend on how a layer is cut into ranges, on threads,
// on instruction sets or on the program's floating-point flags. Tests also APS shifts and states.
// Other files test packed formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/packed.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/flushing.h"
#include "tests/testing/patterns.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"
#include "tests/testing/run_length_codec.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::kInf;
using testing::kNan;
using testing::RunLength;
using testing::same;
using Bytes = std::vector<std::uint8_t>;
using Values = std::vector<float>;

RoundingOptions stochastic() { return {.mode = Rounding::stochastic}; }

/// Returns every codec. A codec that rounds each row of a layer by itself is returned twice: as it
/// is, and for rows of 33 values.
std::vector<SharedCodec> codecs() {
  std::vector<SharedCodec> all;
  for (const RoundingOptions& rounding : {RoundingOptions{}, stochastic()}) {
    all.push_back(std::make_shared<RunLength>(ParseFormat("e4m3"), rounding));
    for (const char* format : {"e4m3", "e3m0", "e6m9", "fp32", "mxfp8", "nvfp4", "e5m2 1"}) {
      all.push_back(MakeCodec(format, rounding));
    }
  }
  for (const auto& texts : {testing::codec_texts(), testing::more_codec_texts()}) {
    for (const std::string& text : texts) {
      all.push_back(MakeCodec(text));
      if (all.back()->by_rows()) all.push_back(all.back()->ForRows(33));
    }
  }
  return testing::thinned(all, 3);
}

Values values_of(std::size_t n, std::size_t seed = 77) {
  Values x = testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), n, seed + n);
  for (std::size_t i = 10; i < n; i += 3) x[i] = x[i - 1];  // runs
  return x;
}

/// A layer that a test passes to one or more calls of a codec. If the codec stores rounding errors,
/// the layer begins with stored errors, as after earlier calls; with has_error = false it begins
/// with none.
class Layer {
 public:
  Layer(const Codec& codec, std::size_t n, bool has_error = true)
      : codec_(codec), state_(codec.MakeState(static_cast<std::int64_t>(n))) {
    if (codec.needs_gradient()) state_->SetGradient(0.25F);
    if (!has_error || Kept().empty()) return;
    Values error = values_of(n, 5);
    for (float& value : error) value *= 0x1p-6F;
    state_->Restore(error);
  }

  /// Begins a call of the codec for the values x. `random` holds one random integer for each
  /// element. If `random` is null, the integers come from a random key.
  void Begin(const Values& x, int shift = 0, const std::uint32_t* random = nullptr) {
    x_ = x;
    const auto n = static_cast<std::int64_t>(x.size());
    whole_ = {.n = n, .shift = shift, .key = {.stream = 12}, .size = n, .random = random};
    if (state_ != nullptr) state_->Begin(whole_, x_.data());
    if (codec_.measured() != Measured::nothing) {
      whole_.scale = codec_.Measure(whole_, state_.get(), x_.data());
    }
  }
  [[nodiscard]] Bytes Encode(std::int64_t begin, std::int64_t n) const {
    const Piece piece = PieceOf(begin, n);
    const std::int64_t most = codec_.MostBytes(n, begin % codec_.bucket());
    Bytes bytes(static_cast<std::size_t>(most));
    const std::int64_t used = codec_.Encode(piece, state_.get(), x_.data() + begin, bytes.data());
    EXPECT_LE(used, most);
    EXPECT_TRUE(!codec_.is_fixed() || used == most);
    bytes.resize(static_cast<std::size_t>(used));
    return bytes;
  }
  [[nodiscard]] Bytes Encode() const { return Encode(0, whole_.n); }
  [[nodiscard]] Values Decode(const Bytes& bytes, std::int64_t begin, std::int64_t n) const {
    Values y(static_cast<std::size_t>(n));
    codec_.Decode(bytes, n, 0, 1, y.data(), begin % codec_.bucket());
    return y;
  }
  [[nodiscard]] Values Decode(const Bytes& bytes) const { return Decode(bytes, 0, whole_.n); }
  [[nodiscard]] Values Round(std::int64_t begin, std::int64_t n) const {
    Values y(static_cast<std::size_t>(n));
    codec_.Round(PieceOf(begin, n), state_.get(), x_.data() + begin, y.data());
    return y;
  }
  void Commit() const {
    if (state_ != nullptr) state_->Commit();
  }
  [[nodiscard]] Values Kept() const { return state_ == nullptr ? Values{} : state_->Kept(); }
  [[nodiscard]] CodecState* state() const { return state_.get(); }

 private:
  [[nodiscard]] Piece PieceOf(std::int64_t begin, std::int64_t n) const {
    Piece piece = whole_;
    piece.begin = begin;
    piece.n = n;
    if (piece.random != nullptr) piece.random += begin;
    return piece;
  }

  const Codec& codec_;
  std::unique_ptr<CodecState> state_;
  Values x_;
  Piece whole_;
};

Values part_of(const Values& x, std::int64_t begin, std::int64_t n) {
  return {x.begin() + begin, x.begin() + begin + n};
}

TEST(Codec, PackedBytesAreEncodes) {
  const Values x = values_of(1001);
  for (const char* name : {"e4m3", "e3m0", "e6m9", "fp32"}) {
    const Packed codec(ParseFormat(name), stochastic());
    Layer layer(codec, 1001);
    layer.Begin(x);
    const Bytes bytes = layer.Encode();
    EXPECT_EQ(bytes, testing::run_encode(x, ParseFormat(name), stochastic(), {.stream = 12}))
        << name;
    EXPECT_EQ(codec.MostBytes(1001), PackedBytes(ParseFormat(name), 1001));
    EXPECT_TRUE(same(testing::run_decode(bytes, ParseFormat(name), 1001), layer.Decode(bytes)));
  }
}

/// Decoded values and stored errors do not change if the layer is encoded in ranges that cut blocks
/// and buckets. The random integers come from a key or from the caller.
TEST(Codec, ValuesDoNotDependOnThePieces) {
  const Values x = values_of(20000);
  std::mt19937_64 generator(1);
  std::vector<std::uint32_t> integers(x.size());
  for (std::uint32_t& integer : integers) integer = generator() >> 40;
  for (const SharedCodec& codec : codecs()) {
    SCOPED_TRACE(codec->text());
    for (const auto& [shift, random] :
         {std::pair<int, const std::uint32_t*>{0, nullptr}, {3, integers.data()}, {-5, nullptr}}) {
      // The number of bits of a block depends on the random integer of the block's first element. A
      // range that begins within the block does not include that integer, so the test skips codecs
      // with `bits=entropy`.
      if (random != nullptr && codec->name().starts_with("blockwise uniform bits=entropy"))
        continue;
      Layer whole(*codec, x.size()), pieces(*codec, x.size()), rounded(*codec, x.size());
      for (Layer* layer : {&whole, &pieces, &rounded}) layer->Begin(x, shift, random);
      const Values expected = whole.Decode(whole.Encode());
      EXPECT_TRUE(same(expected, rounded.Round(0, 20000)));
      for (std::int64_t begin = 0, n = 1; begin < 20000; begin += n, n = n * 3 + 1) {
        n = std::min(n, 20000 - begin);
        const Values part = part_of(expected, begin, n);
        EXPECT_TRUE(same(part, pieces.Decode(pieces.Encode(begin, n), begin, n)));
        EXPECT_TRUE(same(part, pieces.Round(begin, n)));
      }
      for (const Layer* layer : {&whole, &pieces, &rounded}) layer->Commit();
      EXPECT_TRUE(same(whole.Kept(), pieces.Kept()));
      EXPECT_TRUE(same(whole.Kept(), rounded.Kept()));
    }
  }
}

TEST(Codec, ThreadsShareALayer) {
  const Values x = values_of(20000);
  for (const SharedCodec& codec : codecs()) {
    SCOPED_TRACE(codec->text());
    Layer alone(*codec, x.size()), shared(*codec, x.size());
    alone.Begin(x);
    shared.Begin(x);
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (std::int64_t t = 0; t < 4; ++t) {
      const std::int64_t begin = t * 5000 + (t > 0 ? 33 : 0);  // within a bucket
      const std::int64_t n = (t < 3 ? (t + 1) * 5000 + 33 : 20000) - begin;
      threads.emplace_back([&shared, begin, n, expected = alone.Encode(begin, n)] {
        EXPECT_EQ(shared.Encode(begin, n), expected);
      });
    }
    for (std::thread& thread : threads) thread.join();
    alone.Commit();
    shared.Commit();
    EXPECT_TRUE(same(alone.Kept(), shared.Kept()));
  }
}

/// Returns a layer's values for three successive calls. All have zeros of both signs. The second
/// call's values are multiplied by 2^-126, and the third call's values include NaN and infinities.
std::vector<Values> inputs_of(std::size_t n, bool has_nan) {
  std::vector<Values> all;
  for (const std::size_t call : {0, 1, 2}) {
    all.push_back(values_of(n, call));
    for (std::size_t i = 0; i < n; ++i) {
      float& value = all.back()[i];
      if (call == 1) value *= 0x1p-126F;
      if (i % 29 < 3) value = i % 2 == 0 ? -0.0F : 0;
      if (call == 2 && has_nan && i % 1000 == 77) value = i % 3 == 0 ? kNan : -kInf;
    }
  }
  return all;
}

/// The results of several successive calls of a codec for one layer: the bytes, the decoded values
/// and the stored errors.
struct Sent {
  std::vector<Bytes> bytes;
  std::vector<Values> values;
};
Sent sent_of(const Codec& codec, const std::vector<Values>& inputs) {
  Layer layer(codec, inputs[0].size(), false);
  Sent sent;
  for (const Values& x : inputs) {
    layer.Begin(x, sent.bytes.size() == 1 ? -1 : 0);
    sent.bytes.push_back(layer.Encode());
    sent.values.push_back(layer.Decode(sent.bytes.back()));
    layer.Commit();
    sent.values.push_back(layer.Kept());
  }
  return sent;
}

TEST(Codec, InstructionSetsAndFlagsOfTheProgramChangeNothing) {
  for (const SharedCodec& codec : codecs()) {
    for (const std::size_t n : {1, 63, 64, 700, 9001}) {
      const std::vector<Values> inputs = inputs_of(n, codec->has_nan());
      std::optional<Sent> first;
      for (const std::string& backend : testing::backends()) {
        SCOPED_TRACE(codec->text() + ", n " + std::to_string(n) + ", " + backend);
        const testing::WithBackend with(backend);
        std::vector<Sent> all{sent_of(*codec, inputs)};
#if defined(CPD_TEST_FLUSHES)
        {
          const testing::Flushing flushing(true);
          all.push_back(sent_of(*codec, inputs));
        }
#endif
        if (!first) first = all[0];
        for (const Sent& sent : all) {
          EXPECT_TRUE(first->bytes == sent.bytes);
          for (std::size_t i = 0; i < sent.values.size(); ++i) {
            EXPECT_TRUE(same(first->values[i], sent.values[i])) << i;
          }
        }
      }
    }
  }
}

/// A call that fails may be repeated: Begin starts the call again from the same stored errors. Only
/// Commit replaces the stored errors, which the next call adds to its values.
TEST(Codec, ACallThatFailsLeavesNothing) {
  const Values x = values_of(300);
  for (const SharedCodec& codec : codecs()) {
    SCOPED_TRACE(codec->text());
    Layer layer(*codec, 300);
    const Values before = layer.Kept();
    layer.Begin(x);
    const Bytes once = layer.Encode();
    layer.Begin(values_of(300, 6));
    (void)layer.Encode();
    layer.Begin(x);
    EXPECT_EQ(layer.Encode(), once);
    EXPECT_EQ(layer.Encode(), once);
    EXPECT_TRUE(same(before, layer.Kept()));
    layer.Commit();
    const Values after = layer.Kept();
    EXPECT_EQ(after.size(), before.size());
    EXPECT_TRUE(before.empty() || after != before);
    if (layer.state() == nullptr) continue;
    EXPECT_THROW(layer.state()->Restore(Values(299)), Error);
  }
}

/// An owner rank encodes the sums of its slice without the rest of the layer, and the slice may
/// begin at any bucket. The stored errors equal the errors of a whole layer that contains the
/// slice.
TEST(Codec, ResultsHaveAnErrorOfTheirOwn) {
  int with_errors = 0;
  for (const SharedCodec& codec : codecs()) {
    const SharedCodec results = codec->ForResults(kFp32, 4);
    const std::int64_t bucket = codec->bucket();
    if (results == nullptr || bucket > 1000) continue;
    SCOPED_TRACE(codec->text());
    EXPECT_EQ(results->bucket(), bucket);
    EXPECT_EQ(results->block(), codec->block());
    const std::int64_t begin = 10 * bucket, cut = 2 * bucket, size = 3 * bucket + 30;
    const auto state = results->MakeState(size);
    if (state == nullptr || state->Kept().empty()) continue;
    ++with_errors;
    Layer around(*codec, static_cast<std::size_t>(begin + size), false);
    for (const std::size_t call : {0, 1, 2}) {
      const Values x = values_of(static_cast<std::size_t>(size), call);
      Values all(static_cast<std::size_t>(begin));
      all.insert(all.end(), x.begin(), x.end());
      around.Begin(all);
      const Piece slice{.begin = begin, .n = size, .key = {.stream = 12}};
      state->Begin(slice, nullptr);
      for (const auto& [from, n] : {std::pair{cut, size - cut}, {std::int64_t{0}, cut}}) {
        Piece piece = slice;
        piece.begin += from;
        piece.n = n;
        Bytes bytes(static_cast<std::size_t>(results->MostBytes(n)));
        results->Encode(piece, state.get(), x.data() + from, bytes.data());
        EXPECT_EQ(bytes, around.Encode(begin + from, n));
      }
      state->Commit();
      around.Commit();
      EXPECT_TRUE(same(part_of(around.Kept(), begin, size), state->Kept()));
    }
  }
  EXPECT_TRUE(with_errors >= 8 || testing::kSanitized) << with_errors;
}

TEST(Codec, FixedSizesAdd) {
  for (const SharedCodec& codec : codecs()) {
    const std::int64_t block = codec->block();
    EXPECT_GE(block, 4096);
    EXPECT_EQ(block % 8, 0);
    EXPECT_EQ(block % codec->bucket(), 0);
    if (!codec->is_fixed()) continue;
    for (const std::int64_t before : {std::int64_t{0}, codec->bucket() / 2, codec->bucket() - 1}) {
      for (const std::int64_t rest :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, block - 1}) {
        EXPECT_EQ(codec->MostBytes(3 * block + rest, before),
                  3 * codec->MostBytes(block, before) + codec->MostBytes(rest, before))
            << codec->text() << " " << before << " " << rest;
      }
    }
  }
}

/// The bytes of a layer are the bytes of its blocks, and the last block is shorter. A block with
/// NaN is sent in binary32 if the codec has no code for NaN.
TEST(Codec, LayersTakeTheBytesOfTheirBlocks) {
  const SharedCodec fixed = MakeCodec("e4m3");
  const std::int64_t n = fixed->block() + 3;
  Values x(static_cast<std::size_t>(n), 1.0F);
  const Piece long_layer{.n = n, .size = n};
  EXPECT_EQ(LayerBytes(*fixed, long_layer, nullptr, x.data()), n);
  x.assign(10, 1.0F);
  const SharedCodec sparse = MakeCodec("sparse e2m1");
  const Piece layer{.n = 10, .size = 10};
  EXPECT_LT(LayerBytes(*sparse, layer, nullptr, x.data()), 40);
  x[3] = kNan;
  EXPECT_EQ(LayerBytes(*sparse, layer, nullptr, x.data()), 40);
}

TEST(Codec, DecodeUndoesTheScaleAndDivides) {
  const Values x = values_of(300);
  for (const SharedCodec& codec : codecs()) {
    Layer layer(*codec, 300);
    layer.Begin(x, 4);
    const Bytes bytes = layer.Encode();
    for (const int shift : {0, 3, -4, 126, -126, 127, -200, 300}) {
      for (const float divisor : {1.0F, 4.0F, -3.0F, 0x1p-120F}) {
        Values expected = layer.Decode(bytes);
        Unscale(shift, divisor, 300, expected.data(), expected.data());
        Values y(300);
        codec->Decode(bytes, 300, shift, divisor, y.data());
        EXPECT_TRUE(same(expected, y)) << codec->text() << " " << shift << " " << divisor;
      }
    }
  }
}

TEST(Codec, ALossScaleComesFirst) {
  const Values x = values_of(3000);
  for (const SharedCodec& codec : codecs()) {
    for (const int shift : {7, -9}) {
      Values scaled(x.size());
      Unscale(shift, 1, 3000, x.data(), scaled.data());
      Layer first(*codec, x.size(), false), second(*codec, x.size(), false);
      first.Begin(scaled);
      second.Begin(x, shift);
      EXPECT_EQ(first.Encode(), second.Encode()) << codec->text() << " " << shift;
    }
  }
}

TEST(Unscale, IsTwoRoundingsInPlaceToo) {
  Values x = values_of(1000);
  x.insert(x.end(), {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
                     -std::numeric_limits<float>::infinity(), std::nanf("7"), -0.0F});
  for (const int shift : {0, 1, -3, 126, -140, 200, -300, 5000}) {
    for (const float divisor : {1.0F, 3.0F, 8.0F, 257.0F}) {
      Values expected;
      for (const float value : x) {
        const float one = static_cast<float>(std::ldexp(double{value}, shift)) / divisor;
        expected.push_back(std::isnan(one) ? kNan : one);
      }
      Values y = x;
      Unscale(shift, divisor, static_cast<std::int64_t>(y.size()), y.data(), y.data());
      EXPECT_TRUE(same(expected, y)) << shift << " " << divisor;
    }
  }
}

TEST(Codec, NanIsOneNan) {
  const Values x{-kNan, kNan, kInf, -kInf, -0.0F};
  for (const char* name : {"e5m2", "fp32"}) {
    for (const SharedCodec& codec : {SharedCodec(std::make_shared<Packed>(ParseFormat(name))),
                                     SharedCodec(std::make_shared<RunLength>(ParseFormat(name)))}) {
      Layer layer(*codec, 5);
      layer.Begin(x);
      EXPECT_TRUE(same({kNan, kNan, kInf, -kInf, -0.0F}, layer.Decode(layer.Encode())))
          << codec->text();
    }
  }
  Bytes bytes(5);
  EXPECT_REFUSAL(
      "tensor 3, value 0 is NaN, and e2m1 has no code for NaN",
      Packed(ParseFormat("e2m1")).Encode({.layer = 3, .n = 5}, nullptr, x.data(), bytes.data()));
}

TEST(Codec, TextsNameEqualCodecs) {
  const Format format = ParseFormat("e4m3");
  EXPECT_EQ(Packed(format).text(), Packed(format).text());
  EXPECT_EQ(Packed(format).text(),
            "packed e4m3 rounding=nearest_even overflow=ieee random_bits=24 variant=A");
  EXPECT_NE(Packed(format).text(), Packed(ParseFormat("e5m2")).text());
  EXPECT_NE(Packed(format).text(), Packed(format, stochastic()).text());
  RoundingOptions bad;
  bad.random_bits = 25;
  EXPECT_THROW(Packed(format, bad), Error);
}

TEST(Codec, NamesAreRead) {
  for (const auto& texts : {testing::codec_texts(), testing::more_codec_texts()}) {
    for (const std::string& text : texts) {
      const SharedCodec codec = MakeCodec(text);
      EXPECT_EQ(MakeCodec(codec->name())->name(), codec->name()) << text;
      EXPECT_EQ(MakeCodec(codec->name())->text(), codec->text()) << text;
    }
  }
}

TEST(Codec, SumsArePackedUnlessItSays) {
  const Packed codec(ParseFormat("e4m3"));
  EXPECT_EQ(codec.ForSums(kFp32)->text(), Packed(kFp32).text());
  EXPECT_EQ(RunLength(ParseFormat("e4m3")).ForSums(kFp32)->text(), RunLength(kFp32).text());
}

TEST(CodecStates, AreOfARankAndALayer) {
  const RunLength codec(ParseFormat("e4m3"), {}, true);
  CodecStates states;
  CodecState* first = states.Of(codec, {0, 5}, 10);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(states.Of(codec, {0, 5}, 10), first);
  EXPECT_NE(states.Of(codec, {1, 5}, 10), first);
  EXPECT_NE(states.Of(codec, {0, 6}, 10), first);
  EXPECT_THROW(states.Of(codec, {0, 5}, 11), Error);
  EXPECT_THROW(states.Of(RunLength(ParseFormat("e5m2"), {}, true), {0, 5}, 10), Error);
  EXPECT_EQ(states.Of(Packed(kFp32), {7, 5}, 10), nullptr);
}

TEST(CodecStates, AreOfASlice) {
  const RunLength codec(ParseFormat("e4m3"), {}, true);
  const CodecStates::Key key{1, 5, Stage::result};
  const CodecStates::Begin rotated{.now = 10, .unrotated = 20};
  CodecStates states;
  CodecState* first = states.Of(codec, key, 2, rotated);
  EXPECT_EQ(states.Of(codec, key, 2, rotated), first);
  const Values kept{0.5F, 0.25F};
  for (const std::optional<std::int64_t> begin : {std::optional<std::int64_t>(10), {}}) {
    states.Load({{key, {codec.text(), 2, kept, begin}}});
    EXPECT_EQ(states.Save().at(key).begin, begin);
    const CodecStates::Begin other{.now = begin ? 20 : 10, .unrotated = 20};
    EXPECT_THROW(states.Of(codec, key, 2, other), Error);
    EXPECT_EQ(states.Save().at(key).begin, begin) << "a refusal changes nothing";
    const CodecStates::Begin same{.now = begin.value_or(20), .unrotated = 20};
    ASSERT_NE(states.Of(codec, key, 2, same), nullptr);
    EXPECT_EQ(states.Save().at(key).begin, same.now);
  }
}

TEST(CodecStates, KnowWhoseTheyAre) {
  const RunLength codec(ParseFormat("e3m0"), {}, true);
  CodecStates states;
  states.Claim({3, 1});
  states.Claim({4, {}});  // nothing is kept yet
  EXPECT_EQ(states.owner(), std::nullopt);
  CodecState* state = states.Of(codec, {0, 0}, 1);
  const float x = 1.25F;
  float y = 0;
  state->Begin({0, 0, 1, 0}, &x);
  codec.Round({0, 0, 1, 0}, state, &x, &y);
  state->Commit();
  EXPECT_EQ(states.owner(), (CodecStates::Owner{4, {}}));
  for (const CodecStates::Owner& other : {CodecStates::Owner{5, {}}, {4, 0}}) {
    EXPECT_THROW(states.Claim(other), Error) << ToString(other);
  }
  auto saved = states.Save();
  CodecStates loaded;
  loaded.Load(saved);
  loaded.Claim({2, 1});  // what was nobody's
  loaded.Load(std::move(saved), CodecStates::Owner{2, 0});
  EXPECT_THROW(loaded.Claim({2, 1}), Error);
  loaded.Load({}, CodecStates::Owner{3, 2});
  EXPECT_EQ(loaded.owner(), (CodecStates::Owner{3, 2}));
  loaded.Claim({2, 1});  // nothing is kept
  EXPECT_EQ(loaded.owner(), std::nullopt);
  loaded.Reset();
  EXPECT_EQ(loaded.owner(), std::nullopt);
  loaded.Claim({2, 1});
}

TEST(CodecStates, ChangeOnlyWhereACallSucceeds) {
  const RunLength codec(ParseFormat("e3m0"), {}, true);
  CodecStates states;
  CodecState* state = states.Of(codec, {0, 0}, 3);
  const Values x{1.25F, 3, -0.7F};
  const Piece piece{0, 0, 3, 0};
  const auto sent = [&] {
    state->Begin(piece, x.data());
    Values y(3);
    codec.Round(piece, state, x.data(), y.data());
    return y;
  };
  const Values once = sent();
  EXPECT_TRUE(same(once, sent()));
  state->Commit();
  Values fed_back(3);
  const Packed plain(ParseFormat("e3m0"));
  for (std::size_t i = 0; i < 3; ++i) fed_back[i] = x[i] + (x[i] - once[i]);
  plain.Round(piece, nullptr, fed_back.data(), fed_back.data());
  EXPECT_TRUE(same(fed_back, sent()));
  EXPECT_FALSE(same(once, fed_back));
}

}  // namespace
}  // namespace cpd
