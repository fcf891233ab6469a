// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "cpd/compress/packed.h"
#include "cpd/numeric/error.h"
#include "cpd/numeric/streams.h"

namespace cpd {

Losses CountLosses(std::int64_t n, const float* x, const float* terms) {
  constexpr std::int64_t kRun = 4096;  // whose counts fit lanes as wide as the values
  constexpr std::uint32_t kExponent = 0x7F800000;
  Losses losses;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    std::uint32_t non_finite = 0;
    std::uint32_t underflowed = 0;
    for (std::int64_t i = begin; i < std::min(begin + kRun, n); ++i) {
      const auto given = std::bit_cast<std::uint32_t>(x[i]);
      const auto term = std::bit_cast<std::uint32_t>(terms[i]);
      non_finite += static_cast<std::uint32_t>((given & kExponent) == kExponent);
      underflowed +=
          static_cast<std::uint32_t>(given << 1 != 0) & static_cast<std::uint32_t>(term << 1 == 0);
    }
    losses.non_finite += non_finite;
    losses.underflowed += underflowed;
  }
  return losses;
}

std::array<Format, 4> FormatsOf(const ReduceSpec& spec) {
  return {spec.format, spec.accumulator.format,
          spec.accumulator.inner.value_or(spec.accumulator.format), spec.result};
}

namespace {

/// Throws Error unless there is a number for each layer, each another.
void CheckNumbers(std::span<const std::int64_t> numbers, std::int64_t layers) {
  if (numbers.empty()) return;
  if (static_cast<std::int64_t>(numbers.size()) != layers) {
    throw Error("there are " + std::to_string(layers) + " layers but " +
                std::to_string(numbers.size()) + " layers' numbers");
  }
  std::vector<std::int64_t> sorted(numbers.begin(), numbers.end());
  std::ranges::sort(sorted);
  if (sorted.front() < 0) {
    throw Error("a layer's number must be at least 0, got " + std::to_string(sorted.front()));
  }
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return;
  throw Error("each layer has a number of its own, got " + std::to_string(*twice) + " twice");
}

}  // namespace

Reduction::Reduction(const ReduceSpec& spec, int world, std::int64_t layers,
                     std::span<const std::int64_t> numbers)
    : spec_(spec), world_(world), numbers_(numbers.begin(), numbers.end()) {
  Check(spec_, world);
  CheckFold(spec_.accumulator, world);
  CheckNumbers(numbers, layers);
  const std::int64_t last = numbers.empty() ? layers - 1 : std::ranges::max(numbers);
  StreamOf(Purpose::wire, spec_.step, last, world - 1);
  wire_ = spec_.wire;
  if (wire_ == nullptr) wire_ = std::make_shared<Packed>(spec_.format, spec_.rounding);
  rounds_ = {spec_.order, grouped() ? (world - 1) / spec_.group_size + 1 : world};
}

std::int64_t Reduction::group_begin(std::int64_t unit) const {
  return grouped() ? unit * spec_.group_size : unit;
}

std::int64_t Reduction::group_size(std::int64_t unit) const {
  if (!grouped()) return 1;
  return std::min<std::int64_t>(spec_.group_size, world_ - group_begin(unit));
}

Level Reduction::Group(std::int64_t layer, std::int64_t unit) const {
  Level level{spec_.accumulator, spec_.format, group_size(unit), spec_.result,
              spec_.accumulator.rounding};
  level.accumulator.rounding.stream = StreamOf(Purpose::sum, spec_.step, number(layer), unit);
  level.rounding.stream = StreamOf(Purpose::result, spec_.step, number(layer), unit);
  return level;
}

Level Reduction::Across(std::int64_t layer) const {
  Level level{spec_.accumulator, grouped() ? spec_.result : spec_.format, rounds_.units,
              spec_.result, spec_.accumulator.rounding};
  if (spec_.order == Order::tree) level.accumulator.scheme = Scheme::pairwise;
  level.accumulator.rounding.stream = StreamOf(Purpose::sum, spec_.step, number(layer), kAcross);
  level.rounding.stream = StreamOf(Purpose::result, spec_.step, number(layer), kAcross);
  return level;
}

int Reduction::ShiftOf(std::uint8_t exponent, Aps aps) const {
  if (aps == Aps::off) return std::ilogb(spec_.loss_scale);
  int shift = ApsShift(exponent, spec_.format, spec_.rounding.mode, aps);
  for (const Format& format : FormatsOf(spec_)) {
    shift = std::min(shift, ApsShift(exponent, format, spec_.accumulator.rounding.mode, aps));
  }
  return shift;
}

bool Reduction::MayOverflow(std::uint8_t exponent) const {
  if (exponent == 0) return false;
  const int shift = ShiftOf(exponent);
  if (spec_.aps != Aps::off) return shift > ShiftOf(exponent, Aps::on);
  const int e = exponent - kApsOffset + 1;  // rounding may go outward
  return std::ranges::any_of(FormatsOf(spec_), [&](const Format& format) {
    return (format.has_inf() || format.has_nan()) && e + shift > format.emax();
  });
}

Piece Reduction::PieceOf(std::int64_t layer, std::int64_t rank, int shift, std::int64_t begin,
                         std::int64_t n) const {
  return {static_cast<int>(layer), begin, n, shift,
          StreamOf(Purpose::wire, spec_.step, number(layer), rank)};
}

void Reduction::Take(const Level& level, std::int64_t k, std::span<const float* const> terms,
                     std::int64_t begin, std::int64_t n, FoldState state) {
  const auto count = static_cast<std::int64_t>(terms.size());
  FoldSteps(level.accumulator, level.terms_in, k, count, begin, n, terms.data(), state);
  if (k + count < level.terms) return;
  FoldEnd(level.accumulator, level.terms_in, level.terms, begin, n, state);
  if (level.result == level.accumulator.format) return;
  CastScaled(level.result, level.rounding, 0, begin, n, state.planes, state.planes);
}

void Reduction::Finish(int shift, std::int64_t n, float* values) const {
  Unscale(-shift, divisor(), n, values, values);
}

}  // namespace cpd
