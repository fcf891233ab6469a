// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/scaled_blocks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/base/tensor.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kRunValues = 4096;  // codes of any width end on a byte
// The size, in bytes, of a field in the message. The field tells how many of the next kRunValues
// values belong to the first block.
constexpr std::int64_t kCountBytes = 2;
constexpr std::int64_t kChosen = 1 << 17;  // the most values of a block with `choose`

/// Returns the number of values of a block.
std::int64_t BlockOf(const Scaled& scaled) {
  return scaled.block.kind == BlockShape::Kind::tensor ? std::numeric_limits<std::int64_t>::max()
                                                       : scaled.block.columns;
}

/// Returns the number of blocks of n values. `first` is the number of these values in the first
/// block.
std::int64_t BlocksOf(std::int64_t n, std::int64_t first, std::int64_t block) {
  return 1 + (n - first) / block + ((n - first) % block != 0 ? 1 : 0);
}

/// Returns the largest number of blocks that n >= 1 consecutive values can touch.
std::int64_t MostBlocks(const Scaled& scaled, std::int64_t n) {
  return scaled.block.kind == BlockShape::Kind::tensor ? 1 : BlocksOf(n, 1, scaled.block.columns);
}

/// Copies bits begin … begin + count - 1 of `from` to `to`, and fills the last byte with zeros.
/// Returns the address after the last byte.
std::uint8_t* PutBits(const Bytes& from, std::int64_t begin, std::int64_t count, std::uint8_t* to) {
  const std::int64_t bytes = (count + 7) / 8;
  const std::uint8_t* at = from.data() + begin / 8;
  const int skip = static_cast<int>(begin % 8);
  if (skip == 0) {
    std::copy_n(at, bytes, to);
  } else {
    const std::int64_t there = (skip + count + 7) / 8;
    for (std::int64_t i = 0; i < bytes; ++i) {
      const int above = i + 1 < there ? at[i + 1] << (8 - skip) : 0;
      to[i] = static_cast<std::uint8_t>(at[i] >> skip | above);
    }
  }
  if (count % 8 != 0) to[bytes - 1] &= static_cast<std::uint8_t>((1 << count % 8) - 1);
  return to + bytes;
}

TensorView ViewOf(Bytes& bytes) {
  return View(bytes.data(), DType::u8, static_cast<std::int64_t>(bytes.size()));
}

void CheckForRuns(const Scaled& scaled) {
  Check(scaled);
  const auto refuse = [&](const std::string& why) {
    throw Error(why + ", got " + ToString(scaled));
  };
  if (scaled.block.kind == BlockShape::Kind::row || scaled.block.rows != 1 ||
      scaled.outer == BlockShape::Kind::row) {
    refuse(
        "a tensor of a reduction is a run of values, without rows: give block=N or block=tensor, "
        "or a codec of rows, int8_rows or fp8_rows");
  }
  if (scaled.transform) refuse("a sum of transformed tensors is transformed: give no transform");
  if (!scaled.element.is_signed && !scaled.element.has_nan()) {
    refuse("elements of a reduction must have negative numbers or NaN");
  }
  if (scaled.choose != ScaleChoice::none && scaled.block.columns > kChosen) {
    refuse("choose is for blocks of at most " + std::to_string(kChosen) + " values");
  }
}

}  // namespace

/// The codes of a layer. If the layer has a NaN or Inf for which there may be no code, the layer's
/// cast values are stored instead.
struct ScaledBlocks::Coded final : CodecState {
  Coded(const ScaledBlocks& codec, std::int64_t layer_size)
      : scaled(codec.scaled_),
        rounding(codec.rounding_),
        has_nan(codec.has_nan()),
        size(layer_size) {}

  void BeginOn(const SharedQueue& /*queue*/, const Piece& layer, const float* x) override {
    Clear();
    std::vector<float> shifted;
    if (layer.shift != 0) {
      shifted.resize(static_cast<std::size_t>(size));
      Unscale(layer.shift, 1, size, x, shifted.data());
      x = shifted.data();
    }
    const TensorView given = View(x, DType::f32, size);
    const bool draws = rounding.mode == Rounding::stochastic && layer.random != nullptr;
    const TensorView integers = View(layer.random, DType::u32, size);
    const TensorView* const random = draws ? &integers : nullptr;
    if (!has_nan && !IsFinite(size, x)) {
      values.resize(static_cast<std::size_t>(size));
      return Cast(given, scaled, 0, rounding, View(values), {}, layer.key, random);
    }
    const ScaleCounts counts = CountScales(scaled, std::span(&size, 1), 0);
    elements.resize(static_cast<std::size_t>(PackedBytes(scaled.element, size)));
    blocks.resize(static_cast<std::size_t>(PackedBytes(scaled.scale, counts.blocks)));
    if (scaled.tensor_scale) {
      outer.resize(static_cast<std::size_t>(PackedBytes(*scaled.tensor_scale, counts.tensor)));
    }
    const TensorView second = ViewOf(outer);
    cpd::Encode(given, scaled, 0, rounding, ViewOf(elements), ViewOf(blocks),
                scaled.tensor_scale ? &second : nullptr, {}, layer.key, random);
  }
  void Commit() override { Clear(); }
  void Clear() {
    for (Bytes* each : {&elements, &blocks, &outer}) Bytes().swap(*each);
    std::vector<float>().swap(values);
  }

  Scaled scaled;
  RoundingOptions rounding;
  bool has_nan;
  std::int64_t size;
  Bytes elements, blocks, outer;
  std::vector<float> values;
};

/// The byte layout in a message of up to kRunValues successive values.
struct ScaledBlocks::Run {
  std::int64_t n = 0;
  /// The offsets of the outer scale, of the blocks' scales and of the elements, and the size of all
  /// of them, in bytes.
  std::int64_t outer = 0, blocks = 0, elements = 0, bytes = 0;
};

ScaledBlocks::Run ScaledBlocks::RunOf(std::int64_t n) const {
  if (n == 0) return {};
  Run run{.n = n, .outer = kCountBytes, .blocks = kCountBytes};
  if (scaled_.tensor_scale) run.blocks += PackedBytes(*scaled_.tensor_scale, 1);
  run.elements = run.blocks + PackedBytes(scaled_.scale, MostBlocks(scaled_, n));
  run.bytes = run.elements + PackedBytes(scaled_.element, n);
  return run;
}

ScaledBlocks::ScaledBlocks(const Scaled& scaled, const RoundingOptions& rounding)
    : scaled_(scaled), rounding_(rounding) {
  CheckForRuns(scaled_);
  Check(rounding_);
  plan_ = Guarded([&] { return make_scaled_plan(scaled_, rounding_, false); });
}

std::string ScaledBlocks::name() const { return ToString(scaled_); }

std::string ScaledBlocks::text() const {
  return "scaled " + ToString(scaled_) + " rounding=" + ToString(rounding_.mode) +
         " overflow=" + ToString(rounding_.overflow) +
         " random_bits=" + std::to_string(rounding_.random_bits) +
         " variant=" + ToString(rounding_.variant);
}

std::int64_t ScaledBlocks::MostBytes(std::int64_t n, std::int64_t /*before*/) const {
  return n / kRunValues * RunOf(kRunValues).bytes + RunOf(n % kRunValues).bytes;
}

bool ScaledBlocks::has_nan() const {
  if (!scaled_.scale.has_nan()) return false;
  if (scaled_.element.has_nan()) return !scaled_.tensor_scale || scaled_.tensor_scale->has_nan();
  // If elements have no NaN, a NaN can be encoded only as the NaN scale of its whole block.
  return !scaled_.tensor_scale && scaled_.non_finite == NonFinite::block &&
         scaled_.arithmetic != Arithmetic::torchao && scaled_.arithmetic != Arithmetic::deepgemm;
}

std::int64_t ScaledBlocks::EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* state,
                                    const float* /*x*/, std::uint8_t* to) const {
  const auto& coded = dynamic_cast<const Coded&>(*state);
  if (!coded.values.empty()) {
    throw Error("tensor " + std::to_string(piece.layer) + " has NaN or infinities, and " +
                ToString(scaled_) + " has no codes for them");
  }
  const std::uint8_t* const begin = to;
  const std::int64_t block = BlockOf(scaled_);
  for (std::int64_t i = 0; i < piece.n; i += kRunValues) {
    const Run run = RunOf(std::min(kRunValues, piece.n - i));
    const std::int64_t at = piece.begin + i;
    const std::int64_t first = std::min(run.n, block - at % block);
    to[0] = static_cast<std::uint8_t>(first % 256);
    to[1] = static_cast<std::uint8_t>(first / 256);
    std::ranges::copy(coded.outer, to + run.outer);
    const int bits = scaled_.scale.bits();
    std::uint8_t* const end = PutBits(coded.blocks, at / block * bits,
                                      BlocksOf(run.n, first, block) * bits, to + run.blocks);
    std::fill(end, to + run.elements, std::uint8_t{0});
    PutBits(coded.elements, at * scaled_.element.bits(), run.n * scaled_.element.bits(),
            to + run.elements);
    to += run.bytes;
  }
  return to - begin;
}

void ScaledBlocks::DecodeRun(const std::uint8_t* bytes, const Run& run, float* y) const {
  const std::int64_t block = BlockOf(scaled_);
  const std::int64_t first = bytes[0] + 256 * bytes[1];
  if (first < 1 || first > std::min(run.n, block)) {
    throw DamagedBytes("of " + std::to_string(run.n) + " values in blocks of " +
                       ToString(scaled_.block) + ", " + std::to_string(first) +
                       " cannot lie in the first block");
  }
  const std::int64_t blocks = BlocksOf(run.n, first, block);
  if (blocks > MostBlocks(scaled_, run.n)) throw DamagedBytes("there are too few scales");
  float scales[kRunValues], below[kRunValues], above[kRunValues], elements[kRunValues];
  float outer = 1;
  if (scaled_.tensor_scale) {
    Kernels().decode(
        {.n = 1, .plan = &plan_.outer, .packed = bytes + run.outer, .out = Contiguous(&outer)});
  }
  Kernels().decode(
      {.n = blocks, .plan = &plan_.scale, .packed = bytes + run.blocks, .out = Contiguous(scales)});
  const auto is_negative = [](float scale) { return scale < 0; };
  if (is_negative(outer) || std::any_of(scales, scales + blocks, is_negative)) {
    throw DamagedBytes("a scale is negative");
  }
  float* to = below;
  for (std::int64_t b = 0, end = first; b < blocks; ++b) {
    std::fill(to, below + end, scales[b]);
    to = below + end;
    end += std::min(block, run.n - end);
  }
  std::fill_n(above, run.n, outer);
  Kernels().decode({.n = run.n,
                    .plan = &plan_.element,
                    .packed = bytes + run.elements,
                    .out = Contiguous(elements)});
  const ScaledRun all{.n = run.n, .x = elements, .factor = below, .scale = below, .outer = above};
  Kernels().scale_blocks(plan_.wide_values, all, y);
}

void ScaledBlocks::DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes,
                            std::int64_t n, int shift, float divisor, float* y,
                            std::int64_t /*before*/) const {
  if (static_cast<std::int64_t>(bytes.size()) != MostBytes(n, 0)) {
    throw DamagedBytes(std::to_string(n) + " values of " + ToString(scaled_) + " take " +
                       std::to_string(MostBytes(n, 0)) + " bytes, got " +
                       std::to_string(bytes.size()));
  }
  const std::uint8_t* from = bytes.data();
  for (std::int64_t i = 0; i < n; i += kRunValues) {
    const Run run = RunOf(std::min(kRunValues, n - i));
    Guarded([&] { DecodeRun(from, run, y + i); });
    from += run.bytes;
  }
  Unscale(shift, divisor, n, y, y);
}

void ScaledBlocks::RoundOn(const Queue& queue, const Piece& piece, CodecState* state,
                           const float* x, float* y, SegmentCounts* /*counts*/) const {
  const auto& coded = dynamic_cast<const Coded&>(*state);
  if (coded.values.empty()) return Codec::RoundOn(queue, piece, state, x, y);
  Unscale(0, 1, piece.n, coded.values.data() + piece.begin, y);
}

std::unique_ptr<CodecState> ScaledBlocks::MakeState(std::int64_t size) const {
  return std::make_unique<Coded>(*this, size);
}

}  // namespace cpd
