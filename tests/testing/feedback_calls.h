// SPDX-License-Identifier: Apache-2.0
//
// Calls a codec that adds a residual, and computes the same values step by step: add, encode,
// decode.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "cpd/compress/codec.h"

namespace cpd::testing {

/// Returns values whose magnitude changes after every 100 values. Some are zeros of both signs,
/// subnormals, or much larger than their neighbors.
inline std::vector<float> sent_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int exponent = i / 300 % 4 == 1 ? -130 : static_cast<int>(i / 100 % 9) - 4;
    x[i] = std::ldexp(normal(bits), exponent);
    if (i % 29 < 3) x[i] = i % 2 == 0 ? -0.0F : 0;
    if (i % 311 == 5) x[i] *= 0x1p30F;
  }
  return x;
}

/// Returns x * 2^shift + residual, each operation rounded once to binary32.
inline std::vector<float> with_residual(const std::vector<float>& x, int shift,
                                        const std::vector<float>& residual) {
  std::vector<float> v(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto scaled = static_cast<float>(std::ldexp(static_cast<double>(x[i]), shift));
    v[i] = scaled + residual[i];
  }
  return v;
}

inline std::vector<std::uint8_t> encoded_piece(const Codec& codec, CodecState& state,
                                               const Piece& piece, const std::vector<float>& x) {
  const std::int64_t most = codec.MostBytes(piece.n, piece.begin % codec.bucket());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(most));
  const std::int64_t used = codec.Encode(piece, &state, x.data() + piece.begin, bytes.data());
  bytes.resize(static_cast<std::size_t>(used));
  return bytes;
}

inline std::vector<float> decoded_piece(const Codec& codec, const Piece& piece,
                                        std::span<const std::uint8_t> bytes, int shift = 0,
                                        float divisor = 1) {
  std::vector<float> y(static_cast<std::size_t>(piece.n));
  codec.Decode(bytes, piece.n, shift, divisor, y.data(), piece.begin % codec.bucket());
  return y;
}

/// Divides a layer into ranges, each about three times as long as the range before. Ranges may end
/// within a bucket of the codec.
inline std::vector<Piece> growing_pieces(const Piece& layer) {
  std::vector<Piece> pieces;
  for (std::int64_t begin = 0, n = 1; begin < layer.n; begin += n, n = n * 3 + 1) {
    Piece piece = layer;
    piece.begin = begin;
    piece.n = std::min(n, layer.n - begin);
    pieces.push_back(piece);
  }
  return pieces;
}

/// Returns the range of all values of layer x, which is an argument of a codec's Begin and Encode.
inline Piece layer_of(const std::vector<float>& x, int shift = 0, std::uint64_t stream = 0) {
  const auto n = static_cast<std::int64_t>(x.size());
  return {.n = n, .shift = shift, .key = {.stream = stream}, .size = n};
}

}  // namespace cpd::testing
