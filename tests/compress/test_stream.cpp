// SPDX-License-Identifier: Apache-2.0
//
// Tests self-describing streams of every codec: the header, and the streams that the decoder
// refuses. The decoded values must equal the values of the codec's own calls.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"
#include "tests/testing/patterns.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run_length_codec.h"

namespace cpd {
namespace {

using testing::same;
using Bytes = std::vector<std::uint8_t>;

std::vector<float> values_of(std::size_t n) {
  return testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), n, 77 + n);
}

/// Returns the decoded values of a layer that the codec encodes as a whole, without a stream.
std::vector<float> expected_of(const Codec& codec, const StreamOptions& options,
                               const std::vector<float>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  const auto state = codec.MakeState(n);
  Piece layer{.n = n, .shift = options.shift, .key = options.key, .size = n};
  if (!options.random.empty()) layer.random = options.random.data();
  if (state != nullptr) state->Begin(layer, x.data());
  if (codec.measured() != Measured::nothing) {
    layer.scale = options.scale ? *options.scale : codec.Measure(layer, state.get(), x.data());
  }
  std::vector<float> y(x.size());
  codec.Round(layer, state.get(), x.data(), y.data());
  const bool in_units = codec.measured() == Measured::shared;
  for (float& value : y) value *= in_units ? layer.scale : 1;
  Unscale(-options.shift, 1, n, y.data(), y.data());
  return y;
}

/// Encodes a stream into memory that is filled with 0xA5 before.
Bytes InOwnMemory(const SharedCodec& codec, const StreamOptions& options,
                  const std::vector<float>& x) {
  Bytes bytes;
  const auto memory = [&](std::int64_t most) {
    bytes.assign(static_cast<std::size_t>(most), 0xA5);
    return bytes.data();
  };
  const StreamSize size = EncodeStream(codec, nullptr, options, x, memory);
  bytes.resize(static_cast<std::size_t>(size.all));
  EXPECT_EQ(size.blocks, ReadStream(bytes).bytes);
  return bytes;
}

template <class T>
void put(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// Replaces the stream's checksum by the valid CRC of its other bytes.
Bytes sealed(Bytes bytes) {
  const std::size_t body = bytes.size() - 4;
  put(bytes, body, Crc32c(0, static_cast<std::int64_t>(body), bytes.data()));
  return bytes;
}

TEST(Stream, TextsNameEveryCompressor) {
  EXPECT_TRUE(testing::has_every_compressor(testing::codec_texts()));
}

TEST(Stream, HoldsWhatTheCodecGives) {
  const std::vector<float> all = values_of(140001);
  for (const std::string& text : testing::codec_texts()) {
    const SharedCodec codec = MakeCodec(text);
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{63}, std::size_t{10000}, std::size_t{140001}}) {
      SCOPED_TRACE(text + ", n = " + std::to_string(n));
      const std::vector<float> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
      for (const int shift : {0, 3}) {
        const StreamOptions options{
            .key = {.seed = 7, .stream = 12}, .shift = shift, .row = n == 10000 ? 100 : 0};
        const Bytes bytes = EncodeStream(codec, nullptr, options, x);
        EXPECT_EQ(InOwnMemory(codec, options, x), bytes);
        const DecodedStream got = DecodeStream(bytes, static_cast<std::int64_t>(n));
        const SharedCodec used = CodecOfRows(codec, options.row, static_cast<std::int64_t>(n));
        EXPECT_TRUE(same(expected_of(*used, options, x), got.values));
        const StreamInfo info = ReadStream(bytes);
        EXPECT_EQ(info.codec, codec->name());
        EXPECT_EQ(info.count, static_cast<std::int64_t>(n));
        EXPECT_EQ(info.row, options.row);
        EXPECT_EQ(info.shift, shift);
        EXPECT_LT(info.bytes, static_cast<std::int64_t>(bytes.size()));
        std::string seeded = codec->text();  // as version 0.7 wrote it
        for (std::size_t at = 0; (at = seeded.find("random_bits=24", at)) != std::string::npos;) {
          at += 14 + (seeded.substr(at + 14).starts_with(" variant=A") ? 10 : 0);
          seeded.insert(at, " seed=7");
        }
        EXPECT_EQ(info.options, Crc32c(0, static_cast<std::int64_t>(seeded.size()), seeded.data()));
      }
    }
  }
}

TEST(Stream, EmptyLayers) {
  for (const std::string& text : testing::codec_texts()) {
    const Bytes bytes = EncodeStream(MakeCodec(text), nullptr, {}, {});
    const DecodedStream got = DecodeStream(bytes, 0);
    EXPECT_TRUE(got.values.empty()) << text;
    EXPECT_EQ(got.info.bytes, 0) << text;
  }
}

TEST(Stream, GivenRandomIntegersAndScales) {
  const std::vector<float> x = values_of(5000);
  std::vector<std::uint32_t> random(x.size());
  for (std::size_t i = 0; i < random.size(); ++i) {
    random[i] = static_cast<std::uint32_t>(i * 2654435761U) & 0xFFFFFFU;
  }
  for (const std::string& text : testing::codec_texts()) {
    const SharedCodec codec = CodecOfRows(MakeCodec(text), 0, 5000);
    const StreamOptions options{.scale = 1e4F, .random = random};
    const auto got = DecodeStream(EncodeStream(codec, nullptr, options, x));
    EXPECT_TRUE(same(expected_of(*codec, options, x), got.values)) << text;
    EXPECT_EQ(got.info.scale, codec->measured() == Measured::shared ? 1e4F : 0.0F) << text;
  }
}

TEST(Stream, StatesAreCommitted) {
  const std::vector<float> x = values_of(6000);
  for (const std::string& text : testing::codec_texts()) {
    const SharedCodec codec = CodecOfRows(MakeCodec(text), 0, 6000);
    const auto state = codec->MakeState(6000);
    if (state == nullptr) continue;
    const auto twin = codec->MakeState(6000);
    const auto first = EncodeStream(codec, state.get(), {.key = {.stream = 1}}, x);
    EXPECT_EQ(EncodeStream(codec, nullptr, {.key = {.stream = 1}}, x), first) << text;
    EXPECT_EQ(EncodeStream(codec, twin.get(), {.key = {.stream = 1}}, x), first) << text;
    EXPECT_TRUE(same(twin->Kept(), state->Kept())) << text;
    twin->Restore(state->Kept());
    EXPECT_EQ(EncodeStream(codec, twin.get(), {.key = {.stream = 2}}, x),
              EncodeStream(codec, state.get(), {.key = {.stream = 2}}, x))
        << text;
  }
}

TEST(Stream, SaysWhatIsWrong) {
  const Bytes good = EncodeStream(MakeCodec("e4m3"), nullptr, {.row = 5}, values_of(40));
  const auto damage = [&](std::size_t at, auto value) {
    Bytes bytes = good;
    put(bytes, at, value);
    return testing::refusal_of([&] { (void)DecodeStream(sealed(bytes)); });
  };
  const std::string start = "the stream is damaged: ";
  EXPECT_EQ(damage(0, std::uint32_t{7}), "these bytes are no stream of a codec");
  EXPECT_EQ(damage(4, std::uint16_t{2}), "the stream has version 2, this library reads 1");
  EXPECT_EQ(damage(6, std::uint16_t{3}), start + "its parts do not add to its length");
  EXPECT_EQ(damage(12, std::int32_t{601}), start + "a number of its header is out of range");
  EXPECT_EQ(damage(16, std::int64_t{-1}), start + "a number of its header is out of range");
  EXPECT_EQ(damage(16, std::int64_t{41}), start + "its blocks do not add to their length");
  EXPECT_EQ(damage(16, std::numeric_limits<std::int64_t>::max()),
            start + "its blocks do not add to their length");
  EXPECT_EQ(damage(24, std::int64_t{-1}), start + "a number of its header is out of range");
  EXPECT_EQ(damage(32, std::int64_t{-1}), start + "its parts do not add to its length");
  EXPECT_EQ(damage(32, std::numeric_limits<std::int64_t>::max()),
            start + "its parts do not add to its length");
  for (const float scale :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(damage(40, scale), start + "a number of its header is out of range");
  }
  EXPECT_EQ(damage(44, std::uint32_t{1}), start + "its parts do not add to its length");
  EXPECT_NE(damage(48, 'x').find("unknown codec"), std::string::npos);
  EXPECT_EQ(damage(48, 'E'), start + "'E4m3' is no codec's name");
  EXPECT_EQ(testing::refusal_of([&] { (void)DecodeStream(good, 39); }),
            "the stream holds 40 values, at most 39 were expected");
  EXPECT_EQ(DecodeStream(good, 40).values.size(), 40U);
}

TEST(Stream, RefusesOptionsOutOfRange) {
  const std::vector<float> x = values_of(4);
  const std::vector<std::uint32_t> random(3);
  const SharedCodec codec = MakeCodec("e4m3");
  const auto refusal = [&](const StreamOptions& options) {
    return testing::refusal_of([&] { (void)EncodeStream(codec, nullptr, options, x); });
  };
  EXPECT_EQ(refusal({.row = -1}), "row must not be negative, got -1");
  EXPECT_EQ(refusal({.shift = 601}), "shift must be at most ±600, got 601");
  EXPECT_EQ(refusal({.shift = std::numeric_limits<int>::min()}),
            "shift must be at most ±600, got -2147483648");
  EXPECT_EQ(refusal({.scale = -1.0F}), "scale must be a finite number, not negative, got -1");
  EXPECT_EQ(refusal({.random = random}), "3 random integers for 4 values");
  EXPECT_EQ(testing::refusal_of([] {
              const float nan = std::numeric_limits<float>::quiet_NaN();
              (void)EncodeStream(MakeCodec("e2m1"), nullptr, {}, std::span(&nan, 1));
            }),
            "tensor 0, value 0 is NaN, and e2m1 has no code for NaN");
}

}  // namespace
}  // namespace cpd
