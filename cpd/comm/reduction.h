// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of an all-reduce, the same for virtual ranks and for every transport: what a
// contribution becomes, the number of each term in each sum, the random stream of each rounding. No
// memory of its own, no messages.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/comm/spec.h"
#include "cpd/compress/codec.h"
#include "cpd/numeric/sums/rounds.h"
#include "cpd/ops/reduce.h"

namespace cpd {

/// One ordered sum of a layer: within a group, or across the units.
struct Level {
  Accumulator accumulator;  ///< with the stream of its steps
  Format terms_in;          ///< a format in which its terms lie
  std::int64_t terms = 1;
  Format result;             ///< what its sum is rounded to
  RoundingOptions rounding;  ///< of that, where `result` is not the accumulator's format

  [[nodiscard]] int planes() const { return FoldPlanes(accumulator, terms); }
  /// The format in which plane q of the running sum lies; scheme pairwise apart, whose leaves lie
  /// in terms_in.
  [[nodiscard]] Format plane_format(int q) const {
    const bool inner = accumulator.scheme == Scheme::chunked && q == 1;
    const bool lost = accumulator.scheme == Scheme::kahan && q == 1;
    if (lost && !accumulator.format.has_zero()) return kFp32;  // it begins at +0
    return inner ? accumulator.inner.value_or(accumulator.format) : accumulator.format;
  }
};

/// What the cast of n values to the wire did.
struct Losses {
  std::int64_t non_finite = 0;   ///< NaN and Inf before it
  std::int64_t underflowed = 0;  ///< nonzero values that became zero
};
Losses CountLosses(std::int64_t n, const float* x, const float* terms);

/// The formats in which values of a reduction travel: wire, accumulator, inner sums, result.
std::array<Format, 4> FormatsOf(const ReduceSpec& spec);

/// What a call may say of its layers.
struct LayerOptions {
  /// Their numbers in random streams, each another; empty: 0, 1, …
  std::span<const std::int64_t> numbers{};
  /// Where a codec finds what it kept of them, and leaves it; null: nothing is kept.
  CodecStates* states = nullptr;
  /// Values of a row of each, for a codec that goes by rows; empty: each layer is one row.
  std::span<const std::int64_t> rows{};
  /// Of virtual ranks: whether the states keep what the call left at the last EndRank, or when
  /// VirtualReduce::Commit says so.
  bool commits = true;
};

class Reduction {
 public:
  /// `sizes`: of the layers. Without `encodes_results` owners' sums travel as they are (reduce,
  /// reduce-scatter). Throws Error where the spec, the ranks or the layers are out of range.
  Reduction(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes,
            const LayerOptions& layers = {}, bool encodes_results = true);

  /// The spec; where one group holds all ranks, without groups and in order sequential.
  [[nodiscard]] const ReduceSpec& spec() const { return spec_; }
  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] const Rounds& rounds() const { return rounds_; }
  /// What a layer's contributions become.
  [[nodiscard]] const SharedCodec& wire(std::int64_t layer) const {
    return wires_[wires_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// What an owner's sums become (Codec::ForResults); null: they travel without loss.
  [[nodiscard]] const SharedCodec& results(std::int64_t layer) const {
    return results_[results_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// All of them: one for each layer, or one for all.
  [[nodiscard]] std::span<const SharedCodec> wires() const { return wires_; }
  [[nodiscard]] std::span<const SharedCodec> results() const { return results_; }
  [[nodiscard]] Measured measured() const { return wires_[0]->measured(); }
  /// At multiples of what layers are cut into slices and chunks; empty: anywhere.
  [[nodiscard]] const std::vector<std::int64_t>& buckets() const { return buckets_; }
  /// A layer's number in random streams.
  [[nodiscard]] std::int64_t number(std::int64_t layer) const {
    return numbers_.empty() ? layer : numbers_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] bool grouped() const { return spec_.group_size > 0; }
  /// The ranks of a unit are group_begin … group_begin + group_size - 1.
  [[nodiscard]] std::int64_t group_begin(std::int64_t unit) const;
  [[nodiscard]] std::int64_t group_size(std::int64_t unit) const;

  [[nodiscard]] Level Group(std::int64_t layer, std::int64_t unit) const;
  [[nodiscard]] Level Across(std::int64_t layer) const;

  /// The scale 2^shift of a layer, from the largest ApsExponent of all ranks: what fits the wire,
  /// the accumulator and the result alike.
  [[nodiscard]] int ShiftOf(std::uint8_t exponent) const { return ShiftOf(exponent, spec_.aps); }
  /// With that scale a sum may leave the range of a format that has infinities.
  [[nodiscard]] bool MayOverflow(std::uint8_t exponent) const;
  /// What a layer's largest finite magnitude of all ranks counts as below: its ApsExponent; without
  /// APS 255 from 2^96 on. Throws Error as ApsExponent.
  [[nodiscard]] std::uint8_t ExponentOf(float max_abs) const;
  /// Whether one of the formats in which values travel, or the codec, has no code for NaN.
  [[nodiscard]] bool LacksNan() const;
  /// Whether a cast or a sum of layers with these exponents (ExponentOf) can be NaN though no
  /// contribution is NaN or infinite. Where LacksNan is true too, all values travel in binary32.
  [[nodiscard]] bool MayMeetNan(std::span<const std::uint8_t> exponents) const;
  /// Values begin … begin + n - 1 of a rank's layer, for `wire`; `scale`: what was measured.
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift, float scale,
                              std::int64_t begin, std::int64_t n) const;
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift) const {
    return PieceOf(layer, rank, shift, 0, 0, size(layer));
  }
  /// The same of its sums, for `results`.
  [[nodiscard]] Piece ResultPiece(std::int64_t layer, std::int64_t begin, std::int64_t n) const;
  /// Takes terms k … k + terms.size() - 1 of a level; after the last one plane 0 holds the level's
  /// sum, rounded to its result.
  static void Take(const Level& level, std::int64_t k, std::span<const float* const> terms,
                   std::int64_t begin, std::int64_t n, FoldState state);
  /// What contributions are divided by before anything else, in binary32 (Unscale).
  [[nodiscard]] float first_divisor() const { return DivisorOf(Divide::before); }
  /// What sums are divided by at the end.
  [[nodiscard]] float divisor() const { return DivisorOf(Divide::after); }
  /// Sums into results: multiplies by a scale that ranks share, undoes 2^shift, divides; each
  /// rounded once to binary32. Any NaN becomes 0x7FC00000. In place.
  void Finish(int shift, float scale, std::int64_t n, float* values) const;

 private:
  [[nodiscard]] float DivisorOf(Divide divide) const {
    return spec_.average && spec_.divide == divide ? static_cast<float>(world_) : 1.0F;
  }
  [[nodiscard]] int ShiftOf(std::uint8_t exponent, Aps aps) const;
  [[nodiscard]] std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)];
  }
  /// Whether every sum of W terms -1, 0 and 1 is exact.
  [[nodiscard]] bool HoldsCounts() const;
  void ChooseCodecs(std::span<const std::int64_t> rows, bool encodes_results);

  ReduceSpec spec_;
  int world_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> numbers_;
  std::vector<SharedCodec> wires_, results_;  // of each layer, or one for all
  std::vector<std::int64_t> buckets_;
  Rounds rounds_;
};

}  // namespace cpd
