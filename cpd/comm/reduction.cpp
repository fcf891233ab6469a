// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "cpd/compress/packed.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/error.h"

namespace cpd {

Losses LossesOf(const SegmentCounts& counts) {
  return {static_cast<std::int64_t>(counts.non_finite),
          static_cast<std::int64_t>(counts.underflowed), static_cast<std::int64_t>(counts.zeros)};
}

std::array<Format, 4> FormatsOf(const Reduce& spec) {
  return {spec.format, spec.accumulator.format,
          spec.accumulator.inner.value_or(spec.accumulator.format), spec.result};
}

namespace {

/// Returns the formats that hold sums: of the accumulator, of sums within a chunk, of the result.
std::array<Format, 3> SumsOf(const Reduce& spec) {
  const auto [wire, accumulator, inner, result] = FormatsOf(spec);
  return {accumulator, inner, result};
}

/// Compares bits: a comparison of values would take a subnormal number for zero if the program
/// flushes subnormal numbers.
bool IsZero(float x) { return std::bit_cast<std::uint32_t>(x) << 1 == 0; }

/// Throws Error unless there is one number for each layer, all numbers differ, and none is
/// negative.
void CheckNumbers(std::span<const std::int64_t> numbers, std::int64_t layers) {
  if (numbers.empty()) return;
  if (static_cast<std::int64_t>(numbers.size()) != layers) {
    throw Error("there are " + std::to_string(layers) + " tensors but " +
                std::to_string(numbers.size()) + " tensors' numbers");
  }
  std::vector<std::int64_t> sorted(numbers.begin(), numbers.end());
  std::ranges::sort(sorted);
  if (sorted.front() < 0) {
    throw Error("a tensor's number must be at least 0, got " + std::to_string(sorted.front()));
  }
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return;
  throw Error("each tensor has a number of its own, got " + std::to_string(*twice) + " twice");
}

/// Throws Error unless the length of each layer is a multiple of the length of its rows.
void CheckRows(std::span<const std::int64_t> rows, std::span<const std::int64_t> sizes) {
  if (rows.empty()) return;
  if (rows.size() != sizes.size()) {
    throw Error("rows must have a number for each of " + std::to_string(sizes.size()) +
                " tensors, got " + std::to_string(rows.size()));
  }
  for (std::size_t l = 0; l < rows.size(); ++l) {
    if (rows[l] >= 1 && sizes[l] % rows[l] == 0) continue;
    if (sizes[l] == 0) continue;
    throw Error("tensor " + std::to_string(l) + " of " + std::to_string(sizes[l]) +
                " values cannot have rows of " + std::to_string(rows[l]));
  }
}

}  // namespace

Reduction::Reduction(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                     const TensorOptions& layers, bool to_all)
    : spec_(spec),
      seed_(layers.seed),
      step_(layers.step),
      world_(world),
      to_all_(to_all),
      sizes_(sizes.begin(), sizes.end()),
      numbers_(layers.numbers.begin(), layers.numbers.end()) {
  Check(spec_, world);
  CheckFold(spec_.accumulator, world);
  if (spec_.group_size == world) {
    spec_.group_size = 0;
    spec_.order = Order::sequential;
  }
  const auto count = static_cast<std::int64_t>(sizes.size());
  CheckNumbers(numbers_, count);
  const std::int64_t last = numbers_.empty() ? count - 1 : std::ranges::max(numbers_);
  StreamOf(Purpose::wire, step_, last, world - 1);
  rounds_ = {spec_.order, grouped() ? (world - 1) / spec_.group_size + 1 : world};
  ChooseCodecs(layers.rows);
}

bool Reduction::HoldsCounts() const {
  return std::ranges::all_of(FormatsOf(spec_), [&](const Format& format) {
    return std::ldexp(1.0, format.precision()) >= world_ && format.max() >= world_;
  });
}

void Reduction::ChooseCodecs(std::span<const std::int64_t> rows) {
  SharedCodec wire = spec_.wire;
  if (wire == nullptr) wire = std::make_shared<Packed>(spec_.format, spec_.rounding);
  const bool encodes = to_all_ && spec_.exchange == Exchange::owner &&
                       (wire->measured() != Measured::shared || HoldsCounts());
  const auto results_of = [&](const SharedCodec& codec) {
    return encodes ? codec->ForResults(spec_.result, world_) : nullptr;
  };
  if (wire->by_rows()) {
    CheckRows(rows, sizes_);
    for (std::size_t l = 0; l < sizes_.size(); ++l) {
      const std::int64_t row = rows.empty() ? sizes_[l] : rows[l];
      wires_.push_back(wire->ForRows(std::clamp(row, std::int64_t{1}, kMostBucket)));
      results_.push_back(results_of(wires_.back()));
    }
  }
  if (wires_.empty()) {
    wires_ = {wire};
    results_ = {results_of(wire)};
  }
  if (std::ranges::all_of(wires_, [](const auto& codec) { return codec->bucket() == 1; })) return;
  for (std::size_t l = 0; l < sizes_.size(); ++l) {
    buckets_.push_back(this->wire(static_cast<std::int64_t>(l))->bucket());
  }
}

std::int64_t Reduction::group_begin(std::int64_t unit) const {
  return grouped() ? unit * spec_.group_size : unit;
}

std::int64_t Reduction::group_size(std::int64_t unit) const {
  if (!grouped()) return 1;
  return std::min<std::int64_t>(spec_.group_size, world_ - group_begin(unit));
}

Level Reduction::Group() const {
  return {.accumulator = spec_.accumulator,
          .terms_in = spec_.format,
          .terms = group_size(0),
          .result = spec_.result,
          .rounding = spec_.accumulator.rounding,
          .seed = seed_};
}

Level Reduction::Across() const {
  Level level{spec_.accumulator,
              grouped() ? spec_.result : spec_.format,
              rounds_.units,
              spec_.result,
              spec_.accumulator.rounding,
              seed_};
  if (spec_.order == Order::tree) level.accumulator.scheme = Scheme::pairwise;
  return level;
}

double Reduction::LargestSum(float largest, int shift) const {
  RoundingOptions rounding = spec_.rounding;
  const bool may_grow = rounding.mode == Rounding::stochastic || rounding.mode == Rounding::down;
  if (may_grow) rounding.mode = Rounding::up;
  float term = 0;
  CastScaled(spec_.format, rounding, shift, 0, 1, &largest, &term);
  return static_cast<double>(term) * world_;
}

int Reduction::ShiftOf(float largest, Aps aps) const {
  if (aps == Aps::off) return std::ilogb(spec_.loss_scale);
  if (IsZero(largest)) return 0;
  const int sum = ApsExponent(largest, world_);
  const auto fits = [&](const Format& format) { return format.emax() - sum; };
  const std::array<Format, 3> sums = SumsOf(spec_);
  if (aps == Aps::paper) {
    return std::min(fits(spec_.format), fits(std::ranges::min(sums, {}, fits)));
  }
  // This shift scales each contribution to at most 2^emax. As 2^emax is a value of the wire format,
  // rounding to that format does not exceed it, either.
  int shift = spec_.format.emax() - ApsExponent(largest, 1);
  const bool outward = RoundsOutward(spec_.format, spec_.rounding.mode);
  for (const Format& format : sums) {
    const bool reserve = outward || RoundsOutward(format, spec_.accumulator.rounding.mode);
    shift = std::min(shift, fits(format) - (reserve ? 1 : 0));
  }
  // If the wire format is coarse, rounding may enlarge every rank's value, each by a factor of 2 at
  // most. If the sum of W such values could leave a format, the shift is reduced by 1.
  const bool exceeds = std::ranges::any_of(sums, [&](const Format& format) {
    return !IsWires(format) && shift == fits(format) && LargestSum(largest, shift) > format.max();
  });
  return shift - (exceeds ? 1 : 0);
}

bool Reduction::IsWires(const Format& format) const {
  return format == spec_.format && spec_.accumulator.format == format &&
         spec_.accumulator.inner.value_or(format) == format;
}

bool Reduction::MayOverflow(float largest) const {
  if (IsZero(largest)) return false;
  const int shift = ShiftOf(largest);
  const auto has_limit = [](const Format& format) { return format.has_inf() || format.has_nan(); };
  if (spec_.aps != Aps::off) {
    if (shift > ShiftOf(largest, Aps::on)) return true;
    const Rounding mode = spec_.accumulator.rounding.mode;
    const bool stays = is_nearest(mode) || mode == Rounding::toward_zero;
    const double most = LargestSum(largest, shift);
    return std::ranges::any_of(SumsOf(spec_), [&](const Format& format) {
      if (!has_limit(format) || (stays && IsWires(format))) return false;
      // A sum over W ranks has up to W roundings, and each may enlarge it by one ulp.
      const double steps = stays ? 0 : std::ldexp(world_, -spec_.accumulator.format.man);
      return most * std::exp(steps) > format.max();
    });
  }
  // 2^e is twice a bound of the sum of all ranks' values, because rounding may enlarge the sum. If
  // the largest magnitude is 2^96 or more, a codec's own sums may overflow. The bound is then taken
  // as 2^136, which is beyond binary32's range.
  const int e = (largest < 0x1p96F ? ApsExponent(largest, world_) : 136) + 1;
  return std::ranges::any_of(FormatsOf(spec_), [&](const Format& format) {
    return has_limit(format) && e + shift > format.emax();
  });
}

bool Reduction::LacksNan() const {
  if (spec_.wire != nullptr && !spec_.wire->has_nan()) return true;
  return std::ranges::any_of(FormatsOf(spec_), [](const Format& f) { return !f.has_nan(); });
}

bool Reduction::MayMeetNan(std::span<const float> largest) const {
  // Some formats make NaN from finite numbers of any size. An unsigned format turns numbers below
  // zero into NaN. If a format's largest value is 0, nonzero numbers become infinite, and their sum
  // may be NaN.
  const bool easily = std::ranges::any_of(
      FormatsOf(spec_), [](const Format& f) { return !f.is_signed || f.max() == 0; });
  return easily ||
         std::ranges::any_of(largest, [&](float magnitude) { return MayOverflow(magnitude); });
}

Piece Reduction::PieceOf(std::int64_t layer, std::int64_t rank, int shift, float scale,
                         std::int64_t begin, std::int64_t n) const {
  return {.layer = static_cast<int>(layer),
          .begin = begin,
          .n = n,
          .shift = shift,
          .key = KeyOf(Purpose::wire, layer, rank),
          .size = size(layer),
          .scale = scale};
}

Piece Reduction::ResultPiece(std::int64_t layer, std::int64_t begin, std::int64_t n) const {
  return {.layer = static_cast<int>(layer),
          .begin = begin,
          .n = n,
          .key = KeyOf(Purpose::result, layer, kEncoded)};
}

bool Reduction::rounds_on_devices() const {
  if (spec_.wire == nullptr) return true;
  const auto rounds = [](const Codec& codec) { return codec.kernels() != KernelSupport::none; };
  return rounds(*wires_[0]) && wires_[0]->counts_bytes() &&
         (results_[0] == nullptr || rounds(*results_[0]));
}

bool Reduction::encodes_on_devices() const {
  const auto encodes = [](const SharedCodec& codec) {
    return codec == nullptr || codec->kernels() == KernelSupport::all;
  };
  return spec_.wire == nullptr ||
         (rounds_on_devices() && encodes(wires_[0]) && encodes(results_[0]));
}

}  // namespace cpd
