// SPDX-License-Identifier: Apache-2.0
//
// Checks what a codec's decoder does with valid encodings that are damaged: one bit is flipped, or
// the length is changed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/stream.h"
#include "tests/testing/bits.h"
#include "tests/testing/codec_texts.h"

namespace cpd::testing {

/// Returns layer number `number`: 1 to 48 values with zeros and runs. If the codec has NaN, some
/// values are NaN or infinite.
inline std::vector<float> layer_to_damage(int number, bool has_nan) {
  std::mt19937 engine(static_cast<std::uint32_t>(number));
  std::vector<float> x(1 + engine() % 48);
  const float deviation = std::ldexp(1.0F, static_cast<int>(engine() % 40) - 20);
  std::normal_distribution<float> normal(0, deviation);
  for (float& value : x) value = engine() % 5 == 0 ? 0.0F : normal(engine);
  if (number % 3 == 0)
    std::fill(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end(), x[0]);
  if (has_nan && number % 5 == 0) {
    x[engine() % x.size()] = number % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                             : -std::numeric_limits<float>::infinity();
  }
  return x;
}

/// Calls run(bytes) once for each bit, with that bit flipped.
template <class Run>
void for_each_flip(std::vector<std::uint8_t> bytes, const Run& run) {
  bytes.shrink_to_fit();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::uint8_t>(1U << bit % 8);
    bytes[bit / 8] ^= mask;
    run(std::span<const std::uint8_t>(bytes));
    bytes[bit / 8] ^= mask;
  }
}

/// Calls run(bytes) with each shorter length and with up to nine extra bytes. The memory has
/// exactly the given length, so a sanitizer detects reads behind it.
template <class Run>
void for_each_length(const std::vector<std::uint8_t>& bytes, const Run& run) {
  for (std::size_t size = 0; size <= bytes.size() + 9; ++size) {
    if (size == bytes.size()) continue;
    const auto other = std::make_unique<std::uint8_t[]>(size);
    std::copy_n(bytes.begin(), std::min(size, bytes.size()), other.get());
    run(std::span<const std::uint8_t>(other.get(), size));
  }
}

/// Damages the encodings of the first `layers` layers. With a flipped bit, the decoder must throw
/// DamagedBytes or give values whose NaNs are all the quiet NaN. With another length, it must throw
/// DamagedBytes.
inline void damage_encodings(const std::string& text, int layers) {
  SCOPED_TRACE(text);
  for (int number = 0; number < layers; ++number) {
    const SharedCodec codec = CodecOfRows(MakeCodec(text), 7, 0);
    const std::vector<float> x = layer_to_damage(number, codec->has_nan());
    const auto n = static_cast<std::int64_t>(x.size());
    const auto state = codec->MakeState(n);
    Piece layer{.n = n, .key = {.stream = 5}, .size = n};
    if (codec->needs_gradient()) state->SetGradient(0.25F);
    if (state != nullptr) state->Begin(layer, x.data());
    layer.scale = codec->Measure(layer, state.get(), x.data());
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec->MostBytes(n)));
    bytes.resize(
        static_cast<std::size_t>(codec->Encode(layer, state.get(), x.data(), bytes.data())));
    std::vector<float> y(x.size());
    for_each_length(bytes, [&](std::span<const std::uint8_t> other) {
      ASSERT_THROW(codec->Decode(other, n, 0, 1, y.data()), DamagedBytes) << other.size();
    });
    for_each_flip(bytes, [&](std::span<const std::uint8_t> damaged) {
      try {
        codec->Decode(damaged, n, 0, 1, y.data());
      } catch (const DamagedBytes&) {
        return;
      }
      for (const float value : y) {
        ASSERT_TRUE(!std::isnan(value) || bits_of(value) == 0x7FC00000) << hex(value);
      }
    });
  }
}

/// Damages the streams of the first `layers` layers. Each must be refused with DamagedBytes.
inline void damage_streams(const std::string& text, int layers) {
  SCOPED_TRACE(text);
  const SharedCodec codec = MakeCodec(text);
  for (int number = 0; number < layers; ++number) {
    const std::vector<float> x = layer_to_damage(number, codec->has_nan());
    const auto bytes = EncodeStream(codec, nullptr, {.key = {.stream = 5}, .row = 7}, x);
    ASSERT_EQ(DecodeStream(bytes).values.size(), x.size());
    const auto expect = [](std::span<const std::uint8_t> damaged) {
      ASSERT_THROW((void)DecodeStream(damaged), DamagedBytes);
    };
    for_each_flip(bytes, expect);
    for_each_length(bytes, expect);
  }
}

}  // namespace cpd::testing
