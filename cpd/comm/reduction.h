// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of an all-reduce, the same for virtual ranks and for every transport: the encoding
// of a contribution, the number of each term in each sum, the random stream of each rounding. It
// owns no memory and sends no messages.
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

/// One ordered sum of a layer: within a group, or across the units.
struct Level {
  Accumulator accumulator;
  Format terms_in;  ///< holds every term
  std::int64_t terms = 1;
  Format result;             ///< the format of its sum
  RoundingOptions rounding;  ///< to `result`, if that is not the accumulator's format
  RandomKey sum_key{};       ///< of the sum's steps
  RandomKey result_key{};    ///< of the rounding to `result`

  [[nodiscard]] int planes() const { return FoldPlanes(accumulator, terms); }
  /// The format of the values in plane q of the running sum; not for scheme pairwise, whose leaves
  /// are in terms_in.
  [[nodiscard]] Format plane_format(int q) const {
    const bool inner = accumulator.scheme == Scheme::chunked && q == 1;
    const bool lost = accumulator.scheme == Scheme::kahan && q == 1;
    if (lost && !accumulator.format.has_zero()) return kFp32;  // it begins at +0
    return inner ? accumulator.inner.value_or(accumulator.format) : accumulator.format;
  }
};

/// The losses of the cast of n values to the wire.
struct Losses {
  std::int64_t non_finite = 0;   ///< NaN and Inf before the cast
  std::int64_t underflowed = 0;  ///< nonzero values that became zero
  std::int64_t zeros = 0;        ///< values that are zero after the cast
};
Losses LossesOf(const SegmentCounts& counts);

/// The formats in which values of a reduction travel: wire, accumulator, inner sums, result.
std::array<Format, 4> FormatsOf(const Reduce& spec);

/// A call's numbers, and options for its layers.
struct TensorOptions {
  /// The seed of all random bits of the call.
  std::uint64_t seed = 0;
  /// The number of the call, below 2^24, from which its random streams follow (streams.h).
  std::uint64_t step = 0;
  /// The layers' numbers in random streams, all different; empty: 0, 1, …
  std::span<const std::int64_t> numbers{};
  /// The states that a codec keeps of the layers, which the call updates; null: none are kept.
  CodecStates* states = nullptr;
  /// The length of each layer's rows, for a codec that works by rows; empty: each layer is one row.
  std::span<const std::int64_t> rows{};
  /// For virtual ranks: whether the last EndRank commits the states; else VirtualReduce::Commit
  /// commits them.
  bool commits = true;
  /// For virtual ranks: whether the report has the contributions' bytes. A codec of varying sizes
  /// then encodes contributions once more.
  bool counts_bytes = true;
  /// For real ranks, which compare them: for each layer in turn the number of its dimensions, then
  /// its dimensions. Empty: all layers have one dimension.
  std::span<const std::int64_t> shapes{};
};

class Reduction {
 public:
  /// `sizes`: the layers'. `to_all`: for an all-reduce. Else owners' sums travel without loss, and
  /// rank r owns slice r of each layer (reduce, reduce-scatter). Throws Error where the spec, the
  /// ranks or the layers are out of range.
  Reduction(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
            const TensorOptions& layers = {}, bool to_all = true);

  /// The spec; where one group holds all ranks, it has no groups and order sequential instead.
  [[nodiscard]] const Reduce& spec() const { return spec_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] const Rounds& rounds() const { return rounds_; }
  /// The codec of a layer's contributions.
  [[nodiscard]] const SharedCodec& wire(std::int64_t layer) const {
    return wires_[wires_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// The codec of an owner's sums (Codec::ForResults); null: they travel without loss.
  [[nodiscard]] const SharedCodec& results(std::int64_t layer) const {
    return results_[results_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// The codecs: one for each layer, or one for all.
  [[nodiscard]] std::span<const SharedCodec> wires() const { return wires_; }
  [[nodiscard]] std::span<const SharedCodec> results() const { return results_; }
  [[nodiscard]] Measured measured() const { return wires_[0]->measured(); }
  /// Returns whether every device can round contributions and results, and count their bytes: there
  /// is no codec, or each codec has kernels that round.
  [[nodiscard]] bool rounds_on_devices() const;
  /// Returns whether every device can also make and read the messages (KernelSupport::all).
  [[nodiscard]] bool encodes_on_devices() const;
  /// The layers' buckets. Layers are cut into slices and chunks at their multiples; empty:
  /// anywhere.
  [[nodiscard]] const std::vector<std::int64_t>& buckets() const { return buckets_; }
  /// A layer's number in random streams.
  [[nodiscard]] std::int64_t number(std::int64_t layer) const {
    return numbers_.empty() ? layer : numbers_[static_cast<std::size_t>(layer)];
  }
  /// How far a layer's slices are turned: rank r owns slice (r - turn) mod W, in which sums of
  /// another order than ring do not differ. So the longer slices of many layers have many owners.
  [[nodiscard]] std::int64_t turn(std::int64_t layer) const {
    const bool turns = to_all_ && spec_.exchange == Exchange::owner && spec_.order != Order::ring;
    return turns ? number(layer) % world_ : 0;
  }
  [[nodiscard]] bool grouped() const { return spec_.group_size > 0; }
  /// The ranks of a unit are group_begin … group_begin + group_size - 1.
  [[nodiscard]] std::int64_t group_begin(std::int64_t unit) const;
  [[nodiscard]] std::int64_t group_size(std::int64_t unit) const;

  [[nodiscard]] Level Group(std::int64_t layer, std::int64_t unit) const;
  [[nodiscard]] Level Across(std::int64_t layer) const;

  /// The shift of a layer's scale 2^shift, from the largest finite magnitude of all ranks' values:
  /// the wire holds each scaled value, the accumulator and the result hold W of them (Aps::paper:
  /// so does the wire). Zero for a layer of zeros.
  [[nodiscard]] int ShiftOf(float largest) const { return ShiftOf(largest, spec_.aps); }
  /// Returns whether, with that scale, a value or a sum may leave the range of a format that has
  /// Inf or NaN.
  [[nodiscard]] bool MayOverflow(float largest) const;
  /// Returns whether one of the formats in which values travel, or the codec, has no code for NaN.
  [[nodiscard]] bool LacksNan() const;
  /// Returns true if ranks first agree on the largest magnitude of each layer.
  [[nodiscard]] bool wants_largest() const { return spec_.aps != Aps::off || LacksNan(); }
  /// Returns whether a cast or a sum of layers with these largest magnitudes can be NaN though no
  /// contribution is NaN or infinite. Where LacksNan is true too, all values travel in binary32.
  [[nodiscard]] bool MayMeetNan(std::span<const float> largest) const;
  /// Describes values begin … begin + n - 1 of a rank's layer for the codec wire(layer). `scale`:
  /// the codec's measurement.
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift, float scale,
                              std::int64_t begin, std::int64_t n) const;
  [[nodiscard]] Piece PieceOf(std::int64_t layer, std::int64_t rank, int shift) const {
    return PieceOf(layer, rank, shift, 0, 0, size(layer));
  }
  /// Describes values begin … begin + n - 1 of a layer's sums for the codec results(layer).
  [[nodiscard]] Piece ResultPiece(std::int64_t layer, std::int64_t begin, std::int64_t n) const;
  /// The divisor of contributions before anything else, in binary32 (Unscale).
  [[nodiscard]] float first_divisor() const { return DivisorOf(Divide::before); }
  /// The divisor of sums at the end.
  [[nodiscard]] float divisor() const { return DivisorOf(Divide::after); }

 private:
  [[nodiscard]] float DivisorOf(Divide divide) const {
    return spec_.average && spec_.divide == divide ? static_cast<float>(world_) : 1.0F;
  }
  [[nodiscard]] int ShiftOf(float largest, Aps aps) const;
  /// Returns whether sums in this format add values of the same format: rounding to nearest, they
  /// stop growing before they leave its range.
  [[nodiscard]] bool IsWires(const Format& format) const;
  /// The largest sum of W contributions, each scaled and rounded for the wire, added exactly.
  [[nodiscard]] double LargestSum(float largest, int shift) const;
  [[nodiscard]] RandomKey KeyOf(Purpose purpose, std::int64_t layer, std::int64_t position) const {
    return {.seed = seed_, .stream = StreamOf(purpose, step_, number(layer), position)};
  }
  [[nodiscard]] std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)];
  }
  /// Returns whether all formats hold every sum of W terms of -1, 0 or 1 exactly.
  [[nodiscard]] bool HoldsCounts() const;
  void ChooseCodecs(std::span<const std::int64_t> rows);

  Reduce spec_;
  std::uint64_t seed_, step_;
  int world_;
  bool to_all_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> numbers_;
  std::vector<SharedCodec> wires_, results_;  // of each layer, or one for all
  std::vector<std::int64_t> buckets_;
  Rounds rounds_;
};

}  // namespace cpd
