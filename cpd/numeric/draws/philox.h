// SPDX-License-Identifier: Apache-2.0
//
// Generates random integers. Each integer is a function of (seed, stream, element index, number of
// the integer) and of nothing else.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011, section 3.3). Its key is (seed
// low, seed high). Its counter is (index low, index bits 32…39 | block << 8, stream low, stream
// high). Each counter gives four 32-bit words.
//
// A draw is one random integer R of N bits for one rounding. A word is cut into s draws: s = 1 for
// N > 16, s = 2 for N > 8, else s = 4. Draw q of a word is R = (word >> 32 q / s) mod 2^N.
//
// Elementwise operations (cast, encode, add, …) use block 0, and several elements share a word.
// Element i takes draw (i / 64) mod s of word (i / 16) mod 4 of index 16 floor(i / 64 s) + i mod
// 16. So every multiple of 256 elements begins with a new index, and neighboring lanes have
// neighboring indices.
//
// An ordered sum (sum, GEMM) of output element i uses index i. Its draws are numbered in program
// order: draw t is draw t mod s of word floor(t / s) mod 4 of block floor(t / 4s).
#pragma once

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

template <class U>
struct Words {
  U word[4];
};

/// The state of Philox4x32-10 with counter (c0, c1, c2, c3). A lane of `Split` has 64 bits, and its
/// low half holds one 32-bit word of the state. (Two `Split` vectors hold the counters of one
/// vector.) So the low half of a product is the next word without a shift, and its high half is the
/// next word after one shift. Bits above the low half are never read.
template <class Split>
struct PhiloxState {
  Split c0, c1, c2, c3;

  CPD_FN constexpr void advance(std::uint32_t key0, std::uint32_t key1) {
    const Split p0 = mul_low(c0, std::uint32_t{0xD2511F53});
    const Split p1 = mul_low(c2, std::uint32_t{0xCD9E8D57});
    c0 = xor_last(high_half(p1), c1, splat<Split>(key0));
    c1 = p1;
    c2 = xor_last(high_half(p0), c3, splat<Split>(key1));
    c3 = p0;
  }
};

/// Returns the state after two rounds from the counters (c0, c1, stream low, stream high). Only c0
/// differs between lanes, so the other counters' part of these two rounds is computed once for all
/// lanes.
template <class Split>
CPD_FN constexpr PhiloxState<Split> philox_start(Split c0, std::uint32_t c1, std::uint64_t seed,
                                                 std::uint64_t stream) {
  const auto key0 = static_cast<std::uint32_t>(seed);
  const auto key1 = static_cast<std::uint32_t>(seed >> 32);
  const std::uint64_t first = std::uint64_t{0xCD9E8D57} * static_cast<std::uint32_t>(stream);
  const std::uint32_t x0 = static_cast<std::uint32_t>(first >> 32) ^ c1 ^ key0;
  const std::uint32_t x2 = static_cast<std::uint32_t>(stream >> 32) ^ key1;
  const std::uint64_t second = std::uint64_t{0xD2511F53} * x0;
  const std::uint32_t y0 = static_cast<std::uint32_t>(first) ^ (key0 + 0x9E3779B9U);
  const std::uint32_t y2 = static_cast<std::uint32_t>(second >> 32) ^ (key1 + 0xBB67AE85U);
  const Split p0 = mul_low(c0, std::uint32_t{0xD2511F53});
  const Split p1 = mul_low(high_half(p0) ^ splat<Split>(x2), std::uint32_t{0xCD9E8D57});
  return {high_half(p1) ^ splat<Split>(y0), p1, p0 ^ splat<Split>(y2),
          splat<Split>(static_cast<std::uint32_t>(second))};
}

/// The words of kSets vectors of counters. Each round depends on the round before, so computing
/// several independent sets together takes little longer than computing one.
template <class U, int kSets>
struct WordSets {
  Words<U> set[kSets];
};
/// The number of vectors of counters that one call of philox_sets should compute: as many as fit
/// the registers of an instruction set with vectors U.
template <class U>
constexpr int kWordSets = sizeof(U) == 64 ? 2 : 1;

/// Returns the random words of Philox4x32-10 for kSets vectors of counters. Each lane of c0 gives
/// one counter, (c0, c1, stream low, stream high).
template <class U, int kSets>
CPD_FN constexpr WordSets<U, kSets> philox_sets(const U (&c0)[kSets], std::uint32_t c1,
                                                std::uint64_t seed, std::uint64_t stream) {
  constexpr int kSplits = sizeof(U) > 4 ? 2 : 1;
  PhiloxState<SplitOf<U>> state[kSplits * kSets]{};
  for (int s = 0; s < kSets; ++s) {
    state[kSplits * s] = philox_start(low_lanes(c0[s]), c1, seed, stream);
    if constexpr (kSplits > 1) {
      state[kSplits * s + 1] = philox_start(high_lanes(c0[s]), c1, seed, stream);
    }
  }
  auto key0 = static_cast<std::uint32_t>(seed) + 0x9E3779B9U;
  auto key1 = static_cast<std::uint32_t>(seed >> 32) + 0xBB67AE85U;
  for (int round = 2; round < 10; ++round) {
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
    for (auto& split : state) split.advance(key0, key1);
  }
  WordSets<U, kSets> words{};
  for (int s = 0; s < kSets; ++s) {
    const auto& even = state[kSplits * s];
    const auto& odd = state[kSplits * s + kSplits - 1];
    words.set[s] = {{join_lanes<U>(even.c0, odd.c0), join_lanes<U>(even.c1, odd.c1),
                     join_lanes<U>(even.c2, odd.c2), join_lanes<U>(even.c3, odd.c3)}};
  }
  return words;
}
/// Returns the words of Philox4x32-10 for one vector of counters.
template <class U>
CPD_FN constexpr Words<U> philox_from(U c0, std::uint32_t c1, std::uint64_t seed,
                                      std::uint64_t stream) {
  return philox_sets<U, 1>({c0}, c1, seed, stream).set[0];
}

CPD_FN constexpr std::uint32_t log_of_draws(int random_bits) {
  return random_bits > 16 ? 0 : random_bits > 8 ? 1 : 2;
}
/// Returns the number of random integers into which one 32-bit word is cut.
CPD_FN constexpr int draws_per_word(int random_bits) { return 1 << log_of_draws(random_bits); }

/// Returns c1, the second word of a Philox counter: bits 32…39 of the index | block << 8.
CPD_FN constexpr std::uint32_t second_counter(std::uint64_t index, std::uint64_t block) {
  return static_cast<std::uint32_t>((index >> 32) & 0xFF) | static_cast<std::uint32_t>(block << 8);
}

/// Returns the four random words that Philox generates in block number `block` for each of the
/// indices index, index + 1, …. Each lane has one index. All indices must have the same bits 32…39.
template <class U>
CPD_FN constexpr Words<U> random_words(U index_low, std::uint64_t index, std::uint64_t block,
                                       std::uint64_t seed, std::uint64_t stream) {
  return philox_from(index_low, second_counter(index, block), seed, stream);
}

/// Returns the four random words that Philox generates in block number `block` for each index of
/// kSets vectors. The indices ascend from `index`, and each lane has one index. All indices must
/// have the same bits 32…39.
template <class U, int kSets>
CPD_FN constexpr WordSets<U, kSets> random_words(std::uint64_t index, std::uint64_t block,
                                                 std::uint64_t seed, std::uint64_t stream) {
  constexpr std::uint32_t kLanes = sizeof(U) / 4;
  U c0[kSets]{};
  for (std::uint32_t s = 0; s < kSets; ++s) {
    c0[s] = splat<U>(static_cast<std::uint32_t>(index) + s * kLanes) + iota<U>();
  }
  return philox_sets<U, kSets>(c0, second_counter(index, block), seed, stream);
}

/// Returns the random integer of element i in elementwise operations (cast, encode, add, …).
CPD_FN constexpr std::uint32_t random_integer(int random_bits, std::uint64_t seed,
                                              std::uint64_t stream, std::uint64_t i) {
  const auto draws = static_cast<std::uint64_t>(draws_per_word(random_bits));
  const std::uint64_t index = 16 * (i / (64 * draws)) + i % 16;
  const Words<std::uint32_t> words =
      random_words(static_cast<std::uint32_t>(index), index, 0, seed, stream);
  const auto shift = static_cast<std::uint32_t>(((i / 64) % draws) * (32 / draws));
  return (words.word[(i / 16) % 4] >> shift) & ((1U << random_bits) - 1);
}

/// Returns random integer t (draw t) of an ordered sum. Each lane is one element of the result.
/// `index` is the index of the first element, and index_low holds the low 32 bits of each lane's
/// index.
template <class U>
CPD_FN constexpr U fold_draw(int random_bits, std::uint64_t seed, std::uint64_t stream, U index_low,
                             std::uint64_t index, std::uint64_t t) {
  const auto draws = static_cast<std::uint64_t>(draws_per_word(random_bits));
  const Words<U> words = random_words(index_low, index, t / (4 * draws), seed, stream);
  const auto shift = static_cast<std::uint32_t>((t % draws) * (32 / draws));
  return (words.word[(t / draws) % 4] >> shift) & splat<U>((1U << random_bits) - 1);
}

/// Returns the random words of block `number` for the ordered sums of the elements index, index +
/// 1, …. Each lane of the kSets vectors has the words of one element. The indices may differ in
/// bits 32…39.
template <class U, int kSets = 1>
CPD_FN constexpr WordSets<U, kSets> fold_words(std::uint64_t index, std::uint64_t number,
                                               std::uint64_t seed, std::uint64_t stream) {
  auto words = random_words<U, kSets>(index, number, seed, stream);
  const std::uint64_t last = index + kSets * sizeof(U) / 4 - 1;
  if (last >> 32 != index >> 32) {  // bits 32…39 differ between elements
    for (int s = 0; s < kSets; ++s) {
      const std::uint64_t first = index + static_cast<std::uint64_t>(s) * (sizeof(U) / 4);
      const U low = splat<U>(static_cast<std::uint32_t>(first)) + iota<U>();
      const Words<U> beyond = random_words(low, last, number, seed, stream);
      const auto wrapped = low < splat<U>(static_cast<std::uint32_t>(index));
      for (int w = 0; w < 4; ++w) {
        words.set[s].word[w] = select(wrapped, beyond.word[w], words.set[s].word[w]);
      }
    }
  }
  return words;
}

/// Generates successive draws (random integers) for the ordered sums of elements index, index + 1,
/// …. Each lane of U is one element.
template <class U>
class FoldDraws {
 public:
  CPD_FN constexpr FoldDraws(int random_bits, std::uint64_t seed, std::uint64_t stream,
                             std::uint64_t index, std::uint64_t first)
      : random_bits_(random_bits),
        log_(log_of_draws(random_bits)),
        seed_(seed),
        stream_(stream),
        index_(index),
        next_(first) {
    words_ = block();
  }
  CPD_FN constexpr U next() {
    const U word = words_.word[(next_ >> log_) & 3];
    const auto place = static_cast<std::uint32_t>(next_) & ((1U << log_) - 1);
    const std::uint32_t shift = place << (5 - log_);
    if ((++next_ & ((std::uint64_t{4} << log_) - 1)) == 0) words_ = block();
    return (word >> shift) & splat<U>((1U << random_bits_) - 1);
  }

 private:
  CPD_CALL constexpr Words<U> block() const {
    return fold_words<U>(index_, next_ >> (log_ + 2), seed_, stream_).set[0];
  }

  int random_bits_;
  std::uint32_t log_;  ///< log2 of the number of draws of a word
  std::uint64_t seed_, stream_, index_, next_;
  Words<U> words_{};
};

}  // namespace CPD_ISA
}  // namespace cpd
