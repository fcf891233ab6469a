// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of an all-reduce, the same for virtual ranks and for every transport: the encoding
// of each contribution, the number of each term in each sum, and the random stream of each
// rounding. A Reduction holds no values of layers and sends no messages.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/backend/message_calls.h"
#include "cpd/comm/spec.h"
#include "cpd/compress/codec.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/numeric/sums/rounds.h"
#include "cpd/ops/reduce.h"

namespace cpd {

/// One level of a layer's ordered sum: the sum within a group of ranks, or the sum across all
/// groups (across all ranks, if there are no groups).
struct Level {
  Accumulator accumulator;
  Format terms_in;  ///< the format of the terms
  std::int64_t terms = 1;
  Format result;             ///< the format of its sum
  RoundingOptions rounding;  ///< to `result`, if that is not the accumulator's format
  std::uint64_t seed = 0;    ///< of all random integers; each layer and group has its own streams

  [[nodiscard]] int planes() const { return FoldPlanes(accumulator, terms); }
  /// Returns the format of value q of each running sum's state. Value 0 is the sum. Value 1 is
  /// Kahan's compensation (scheme kahan) or the sum of the current chunk (scheme chunked). Do not
  /// call this function for scheme pairwise, in which a value may be a single term, of format
  /// `terms_in`.
  [[nodiscard]] Format plane_format(int q) const {
    const bool inner = accumulator.scheme == Scheme::chunked && q == 1;
    const bool lost = accumulator.scheme == Scheme::kahan && q == 1;
    if (lost && !accumulator.format.has_zero()) return kFp32;  // it begins at +0
    return inner ? accumulator.inner.value_or(accumulator.format) : accumulator.format;
  }
};

/// Counts of what the cast to the wire format did to n values.
struct Losses {
  std::int64_t non_finite = 0;   ///< NaN and Inf before the cast
  std::int64_t underflowed = 0;  ///< nonzero values that became zero
  std::int64_t zeros = 0;        ///< values that are zero after the cast
};
Losses LossesOf(const SegmentCounts& counts);

/// Returns the formats in which a reduction's values travel: contributions (wire), accumulator,
/// sums within a chunk, result.
std::array<Format, 4> FormatsOf(const Reduce& spec);

/// The numbers that identify a call (seed and step), and options for its layers.
struct TensorOptions {
  /// The seed of all random bits of the call.
  std::uint64_t seed = 0;
  /// The number of the call, below 2^24. It selects the call's random streams (streams.h).
  std::uint64_t step = 0;
  /// The numbers that select the layers' random streams, all different. Empty: 0, 1, …
  std::span<const std::int64_t> numbers{};
  /// The codec's per-layer states, which the call updates. Null: no state survives the call.
  CodecStates* states = nullptr;
  /// The length of each layer's rows, for a codec that works by rows; empty: each layer is one row.
  std::span<const std::int64_t> rows{};
  /// For virtual ranks: true if the last EndRank makes the new codec states final, so that the next
  /// call finds them. False if that waits until the caller calls VirtualReduce::Commit.
  bool commits = true;
  /// For virtual ranks: true if the report counts the contributions' bytes. A codec with messages
  /// of varying size then encodes each contribution once more.
  bool counts_bytes = true;
  /// The layers' shapes, which the handshake of real ranks compares. For each layer: the number of
  /// its dimensions, then their extents. Empty: every layer has one dimension.
  std::span<const std::int64_t> shapes{};
};

class Reduction {
 public:
  /// `sizes`: the number of values of each layer. `to_all`: true for an all-reduce. If false
  /// (reduce and reduce-scatter), sums travel without loss, and rank r owns slice r of each layer.
  /// Throws Error if the spec, the ranks or the layers are out of range.
  Reduction(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
            const TensorOptions& layers = {}, bool to_all = true);

  /// Returns the spec. A spec with one group of all ranks is replaced: it has no groups and order
  /// sequential.
  [[nodiscard]] const Reduce& spec() const { return spec_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] const Rounds& rounds() const { return rounds_; }
  /// Returns the codec of a layer's contributions.
  [[nodiscard]] const SharedCodec& wire(std::int64_t layer) const {
    return wires_[wires_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// Returns the codec of the sums that an owner sends (Codec::ForResults); null: sums travel
  /// without loss.
  [[nodiscard]] const SharedCodec& results(std::int64_t layer) const {
    return results_[results_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// The codecs of contributions: one for each layer, or one for all layers.
  [[nodiscard]] std::span<const SharedCodec> wires() const { return wires_; }
  [[nodiscard]] std::span<const SharedCodec> results() const { return results_; }
  [[nodiscard]] Measured measured() const { return wires_[0]->measured(); }
  /// Returns whether every device can round contributions and results and count their bytes. This
  /// holds if there is no codec, or if each codec has kernels that round.
  [[nodiscard]] bool rounds_on_devices() const;
  /// Returns whether every device can round contributions and results, and encode them to messages
  /// and decode them (KernelSupport::all).
  [[nodiscard]] bool encodes_on_devices() const;
  /// The bucket length of each layer. Slices and chunks begin at multiples of the bucket length.
  /// Empty: slices and chunks begin anywhere.
  [[nodiscard]] const std::vector<std::int64_t>& buckets() const { return buckets_; }
  /// Returns the number that selects the layer's random streams.
  [[nodiscard]] std::int64_t number(std::int64_t layer) const {
    return numbers_.empty() ? layer : numbers_[static_cast<std::size_t>(layer)];
  }
  /// Returns the number of ranks by which the owners of the layer's slices are rotated: rank r owns
  /// slice (r - turn) mod W. The rotation gives the longer slices of different layers, or their
  /// first buckets, different owners. It follows number(layer), not the layer's index in the call,
  /// so a result's residuals of error feedback always belong to the same rank. Returns 0 if a
  /// rotation would change sums (order ring).
  [[nodiscard]] std::int64_t turn(std::int64_t layer) const {
    const bool turns = to_all_ && spec_.exchange == Exchange::owner && spec_.order != Order::ring;
    return turns ? number(layer) % world_ : 0;
  }
  [[nodiscard]] bool grouped() const { return spec_.group_size > 0; }
  /// Returns the first rank of a unit (a group, or a rank if there are no groups). The unit has
  /// group_size(unit) successive ranks.
  [[nodiscard]] std::int64_t group_begin(std::int64_t unit) const;
  [[nodiscard]] std::int64_t group_size(std::int64_t unit) const;

  /// Returns the level of the sums within groups, with the number of terms of the first group. Only
  /// the last group may have fewer.
  [[nodiscard]] Level Group() const;
  [[nodiscard]] Level Across() const;

  /// Returns the exponent of a layer's scale 2^shift. `largest`: the largest finite magnitude of
  /// all ranks' values. With this scale the wire format holds each scaled value, and the
  /// accumulator and the result hold a sum of W such values: largest * 2^shift <= 2^emax of the
  /// wire format, and W * largest * 2^shift <= 2^emax of the other two. The shift is one less if
  /// roundings could make a sum leave a format's range. With Aps::paper the wire format holds the
  /// sum, too, and the shift is not reduced. Returns 0 for a layer of zeros.
  [[nodiscard]] int ShiftOf(float largest) const { return ShiftOf(largest, spec_.aps); }
  /// Returns whether a value or a sum, scaled by ShiftOf(largest), may leave the range of a format
  /// that has infinity or NaN.
  [[nodiscard]] bool MayOverflow(float largest) const;
  /// Returns whether NaN has no code in the codec or in one of the formats in which values travel.
  [[nodiscard]] bool LacksNan() const;
  /// Returns whether ranks first agree on the largest magnitude of each layer.
  [[nodiscard]] bool wants_largest() const { return spec_.aps != Aps::off || LacksNan(); }
  /// `largest`: each layer's largest magnitude. Returns whether a cast or a sum of layers with
  /// these magnitudes can be NaN though all contributions are finite. If LacksNan() is true too,
  /// all values travel in binary32.
  [[nodiscard]] bool MayMeetNan(std::span<const float> largest) const;
  /// Returns the Piece that describes values begin … begin + n - 1 of a rank's layer to the codec
  /// that encodes them, wire(layer). `scale`: the result of Codec::Measure for the layer.
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift, float scale,
                              std::int64_t begin, std::int64_t n) const;
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift) const {
    return PieceOf(layer, rank, shift, 0, 0, size(layer));
  }
  /// Returns the Piece that describes sums begin … begin + n - 1 of a layer to the codec that
  /// encodes them, results(layer).
  [[nodiscard]] Piece ResultPiece(std::int64_t layer, std::int64_t begin, std::int64_t n) const;
  /// Returns the number by which contributions are divided, in binary32 (Unscale), before they are
  /// measured and cast; 1 for no division.
  [[nodiscard]] float first_divisor() const { return DivisorOf(Divide::before); }
  /// Returns the number by which sums are divided at the end; 1 for no division.
  [[nodiscard]] float divisor() const { return DivisorOf(Divide::after); }

 private:
  [[nodiscard]] float DivisorOf(Divide divide) const {
    return spec_.average && spec_.divide == divide ? static_cast<float>(world_) : 1.0F;
  }
  [[nodiscard]] int ShiftOf(float largest, Aps aps) const;
  /// Returns whether contributions, sums and the sums of chunks all have this format. If such sums
  /// round to nearest or toward zero, they stop growing before they leave the format's range.
  [[nodiscard]] bool IsWires(const Format& format) const;
  /// Returns a bound of the scaled sum of W contributions: W times `largest`, which is first
  /// multiplied by 2^shift and rounded to the wire format. That rounding is upward if the spec's
  /// rounding mode may round up.
  [[nodiscard]] double LargestSum(float largest, int shift) const;
  [[nodiscard]] RandomKey KeyOf(Purpose purpose, std::int64_t layer, std::int64_t position) const {
    return {.seed = seed_, .stream = StreamOf(purpose, step_, number(layer), position)};
  }
  [[nodiscard]] std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)];
  }
  /// Returns whether each format holds, without rounding, every sum of W terms that have only the
  /// values -1, 0 and 1.
  [[nodiscard]] bool HoldsCounts() const;
  void ChooseCodecs(std::span<const std::int64_t> rows);

  Reduce spec_;
  std::uint64_t seed_, step_;
  int world_;
  bool to_all_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> numbers_;
  std::vector<SharedCodec> wires_, results_;  // one for each layer, or one for all
  std::vector<std::int64_t> buckets_;
  Rounds rounds_;
};

}  // namespace cpd
