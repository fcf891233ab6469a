// SPDX-License-Identifier: Apache-2.0
//
// Random bits are a function of (seed, stream, element index, draw) and of nothing else.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011, section 3.3), key = (seed low,
// seed high), counter = (index low, index bits 32…39 | block << 8, stream low, stream high), which
// gives four 32-bit words.
//
// A word serves s draws: 1 for N > 16 random bits, 2 for N > 8, else 4. Draw q of a word is
// R = (word >> 32 q / s) mod 2^N.
//
// Elementwise operations (cast, encode, add, …) use block 0, and share words among elements:
// element i takes draw (i / 64) mod s of word (i / 16) mod 4 of index 16 floor(i / 64 s) + i
// mod 16. So 256 elements always begin with a fresh index, and neighbouring lanes have neighbouring
// indices.
//
// Folds (sums, GEMM) give each output element its own index: draw number t, in program order, is
// draw t mod s of word floor(t / s) mod 4 of block floor(t / 4s).
#pragma once

#include "cpd/numeric/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

template <class U>
struct Words {
  U word[4];
};

/// Philox4x32-10 of the counter (c0, c1, c2, c3). `Split` lanes hold every second counter in the
/// low half of 64 bits: a product's low half is then the next word as it is, its high half one
/// shift away, and what gathers above the low half is never read.
template <class Split>
struct PhiloxState {
  Split c0, c1, c2, c3;

  CPD_FN constexpr void advance(std::uint32_t key0, std::uint32_t key1) {
    const Split p0 = mul_low(c0, std::uint32_t{0xD2511F53});
    const Split p1 = mul_low(c2, std::uint32_t{0xCD9E8D57});
    c0 = (p1 >> 32) ^ c1 ^ splat<Split>(key0);
    c1 = p1;
    c2 = (p0 >> 32) ^ c3 ^ splat<Split>(key1);
    c3 = p0;
  }
};

template <class U>
CPD_FN constexpr Words<U> philox(U c0, U c1, U c2, U c3, std::uint64_t seed) {
  using Split = SplitOf<U>;
  PhiloxState<Split> even{low_lanes(c0), low_lanes(c1), low_lanes(c2), low_lanes(c3)};
  PhiloxState<Split> odd{high_lanes(c0), high_lanes(c1), high_lanes(c2), high_lanes(c3)};
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    even.advance(key0, key1);
    if constexpr (sizeof(U) > 4) odd.advance(key0, key1);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{join_lanes<U>(even.c0, odd.c0), join_lanes<U>(even.c1, odd.c1),
           join_lanes<U>(even.c2, odd.c2), join_lanes<U>(even.c3, odd.c3)}};
}

CPD_FN constexpr int draws_per_word(int random_bits) {
  return random_bits > 16 ? 1 : random_bits > 8 ? 2 : 4;
}

/// The words of `block` at indices index, index + 1, …, one a lane; the indices share their bits
/// 32…39.
template <class U>
CPD_FN constexpr Words<U> random_words(U index_low, std::uint64_t index, std::uint64_t block,
                                       std::uint64_t seed, std::uint64_t stream) {
  const auto high =
      static_cast<std::uint32_t>((index >> 32) & 0xFF) | static_cast<std::uint32_t>(block << 8);
  return philox(index_low, splat<U>(high), splat<U>(static_cast<std::uint32_t>(stream)),
                splat<U>(static_cast<std::uint32_t>(stream >> 32)), seed);
}

/// Element i's integer for elementwise operations, one at a time.
CPD_FN constexpr std::uint32_t random_integer(int random_bits, std::uint64_t seed,
                                              std::uint64_t stream, std::uint64_t i) {
  const auto draws = static_cast<std::uint64_t>(draws_per_word(random_bits));
  const std::uint64_t index = 16 * (i / (64 * draws)) + i % 16;
  const Words<std::uint32_t> words =
      random_words(static_cast<std::uint32_t>(index), index, 0, seed, stream);
  const auto shift = static_cast<std::uint32_t>(((i / 64) % draws) * (32 / draws));
  return (words.word[(i / 16) % 4] >> shift) & ((1U << random_bits) - 1);
}

/// Draw number t of element `index` in a fold.
template <class U>
CPD_FN constexpr U fold_draw(int random_bits, std::uint64_t seed, std::uint64_t stream, U index_low,
                             std::uint64_t index, std::uint64_t t) {
  const auto draws = static_cast<std::uint64_t>(draws_per_word(random_bits));
  const Words<U> words = random_words(index_low, index, t / (4 * draws), seed, stream);
  const auto shift = static_cast<std::uint32_t>((t % draws) * (32 / draws));
  return (words.word[(t / draws) % 4] >> shift) & splat<U>((1U << random_bits) - 1);
}

}  // namespace CPD_ISA
}  // namespace cpd
