// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/virtual.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpd/base/kernel_table.h"
#include "cpd/base/parallel.h"
#include "cpd/comm/streams.h"
#include "cpd/numeric/error.h"
#include "cpd/ops/reduce.h"

namespace cpd {
namespace {

constexpr std::int64_t kStage = 4096;  // values worked on at once, a multiple of kBlock
constexpr std::int64_t kSerialBelow = 1 << 15;

/// One binary32 value per element, in half the memory where every value has at most 8 significant
/// bits and so zeros in the low half of its pattern.
class Values {
 public:
  void Resize(std::int64_t n, bool halves) {
    halves_ = halves;
    if (halves) {
      short_.resize(static_cast<std::size_t>(n));
    } else {
      full_.resize(static_cast<std::size_t>(n));
    }
  }
  void Load(std::int64_t begin, std::int64_t n, float* to) const {
    if (!halves_) {
      std::copy_n(full_.data() + begin, n, to);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(short_.data()[begin + i]) << 16);
    }
  }
  void Store(std::int64_t begin, std::int64_t n, const float* from) {
    if (!halves_) {
      std::copy_n(from, n, full_.data() + begin);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      short_.data()[begin + i] =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[i]) >> 16);
    }
  }
  void Free() {
    full_ = {};
    short_ = {};
  }

 private:
  bool halves_ = false;
  std::vector<float> full_;
  std::vector<std::uint16_t> short_;
};

/// The running sums of one layer at one level.
struct Level {
  Values sum, compensation;

  void Resize(std::int64_t n, bool kahan, bool halves) {
    sum.Resize(n, halves);
    if (kahan) compensation.Resize(n, halves);
  }
  void Free() {
    sum.Free();
    compensation.Free();
  }
};

struct Layer {
  std::int64_t size = 0;
  std::uint8_t exponent = 0;  // largest of all ranks
  int observed = 0;           // ranks
  int shift = 0;
  Level group, across;
  std::atomic<std::int64_t> non_finite{0};
  std::atomic<std::int64_t> underflowed{0};
  std::int64_t overflowed = 0;
};

/// Units (ranks, or groups) across which the outer fold runs, in the order in which they come. Unit
/// u's values are term `Term(visit, slice)` of a slice, or none of its.
struct Rounds {
  Order order = Order::sequential;
  std::int64_t units = 1;

  /// A ring's slice s runs from unit s + 1 around to s, so that its terms come at visits s … s + U
  /// - 1.
  [[nodiscard]] std::int64_t visits() const { return order == Order::ring ? 2 * units - 1 : units; }
  [[nodiscard]] std::int64_t unit(std::int64_t visit) const {
    return order == Order::ring ? (visit + 1) % units : visit;
  }
  [[nodiscard]] std::int64_t slices() const { return order == Order::ring ? units : 1; }
  /// -1 where the visit is no term of the slice.
  [[nodiscard]] std::int64_t term(std::int64_t visit, std::int64_t slice) const {
    if (order != Order::ring) return visit;
    const std::int64_t term = visit - slice;
    return term < units ? term : -1;
  }
  /// Where slice s of n values begins; the first n mod slices are one longer.
  [[nodiscard]] std::int64_t begin(std::int64_t n, std::int64_t s) const {
    return n / slices() * s + std::min(s, n % slices());
  }
  /// The slice that holds value i.
  [[nodiscard]] std::int64_t slice_of(std::int64_t n, std::int64_t i) const {
    const std::int64_t length = n / slices();
    const std::int64_t longer = n % slices() * (length + 1);
    return i < longer ? i / (length + 1) : n % slices() + (i - longer) / length;
  }
};

}  // namespace

struct VirtualReduce::Impl {
  ReduceSpec spec;
  int world;
  std::vector<Layer> layers;
  Rounds rounds;
  std::int64_t position = 0;  // in the schedule
  std::int64_t visit = 0;     // of rounds
  std::int64_t member = 0;    // of the visit's group
  std::vector<int> ranks;     // the schedule
  bool contributed = false;

  Impl(const ReduceSpec& given, int ranks_in_all, const std::vector<std::int64_t>& sizes)
      : spec(given), world(ranks_in_all), layers(sizes.size()) {
    Check(spec);
    if (world < 1) throw Error("world must be at least 1, got " + std::to_string(world));
    CheckFold(spec.accumulator, world);
    StreamOf(Purpose::wire, spec.step, static_cast<std::int64_t>(sizes.size()) - 1, world - 1);
    rounds = {spec.order, grouped() ? (world + spec.group_size - 1) / spec.group_size : world};
    const bool kahan = spec.accumulator.scheme == Scheme::kahan;
    const bool halves = grouped() && kahan && FitsHalves(spec.accumulator.format);
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      if (sizes[l] < 0) throw Error("layer sizes must not be negative");
      layers[l].size = sizes[l];
      layers[l].across.Resize(sizes[l], kahan, halves);
      if (grouped()) layers[l].group.Resize(sizes[l], kahan, false);
    }
    MakeSchedule();
  }

  [[nodiscard]] bool grouped() const { return spec.group_size > 0; }

  static bool FitsHalves(const Format& format) {
    return format.man <= 7 && format.min_quantum_exponent() >= -133;
  }

  [[nodiscard]] std::int64_t GroupBegin(std::int64_t unit) const {
    return grouped() ? unit * spec.group_size : unit;
  }
  [[nodiscard]] std::int64_t GroupSize(std::int64_t unit) const {
    if (!grouped()) return 1;
    return std::min<std::int64_t>(spec.group_size, world - GroupBegin(unit));
  }

  void MakeSchedule() {
    for (std::int64_t v = 0; v < rounds.visits(); ++v) {
      const std::int64_t unit = rounds.unit(v);
      for (std::int64_t m = 0; m < GroupSize(unit); ++m) {
        ranks.push_back(static_cast<int>(GroupBegin(unit) + m));
      }
    }
  }

  [[nodiscard]] Layer& At(int layer, const TensorView& x) {
    if (layer < 0 || layer >= static_cast<int>(layers.size())) {
      throw Error("layer must be 0…" + std::to_string(layers.size() - 1) + ", got " +
                  std::to_string(layer));
    }
    Layer& found = layers[static_cast<std::size_t>(layer)];
    if (x.dtype != DType::f32 || !x.is_contiguous() || x.device != Device::cpu) {
      throw Error("a layer must be contiguous fp32 on the CPU, got " + ToString(x.dtype));
    }
    if (x.size() != found.size) {
      throw Error("layer " + std::to_string(layer) + " has " + std::to_string(found.size) +
                  " values, got " + std::to_string(x.size()));
    }
    return found;
  }

  /// The scale of one layer: what fits the wire, the accumulator and the result alike.
  [[nodiscard]] int ShiftOf(const Layer& layer) const {
    if (spec.aps == Aps::off) return std::ilogb(spec.loss_scale);
    const Rounding wire = spec.rounding.mode;
    const Rounding sum = spec.accumulator.rounding.mode;
    int shift = ApsShift(layer.exponent, spec.format, wire, spec.aps);
    for (const Format& format : {spec.format, spec.accumulator.format, spec.result}) {
      shift = std::min(shift, ApsShift(layer.exponent, format, sum, spec.aps));
    }
    return shift;
  }

  /// Adds a block of terms to the outer sums, slice by slice.
  void FoldAcross(int l, std::int64_t begin, std::int64_t n, const float* terms,
                  const Format& terms_in) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Accumulator accumulator = WithStream(spec.accumulator, Purpose::sum, l, kAcross);
    for (std::int64_t i = begin; i < begin + n;) {
      const std::int64_t slice = rounds.slice_of(layer.size, i);
      const std::int64_t end = std::min(begin + n, rounds.begin(layer.size, slice + 1));
      const std::int64_t k = rounds.term(visit, slice);
      if (k >= 0) Fold(accumulator, terms_in, k, layer.across, i, end - i, terms + (i - begin));
      i = end;
    }
  }

  void Fold(const Accumulator& accumulator, const Format& terms_in, std::int64_t k, Level& level,
            std::int64_t begin, std::int64_t n, const float* terms) const {
    const bool kahan = accumulator.scheme == Scheme::kahan;
    float sum[kStage];
    float compensation[kStage];
    if (k > 0) {
      level.sum.Load(begin, n, sum);
      if (kahan) level.compensation.Load(begin, n, compensation);
    }
    FoldStep(accumulator, terms_in, k, begin, n, terms, {sum, compensation});
    level.sum.Store(begin, n, sum);
    if (kahan) level.compensation.Store(begin, n, compensation);
  }

  [[nodiscard]] Accumulator WithStream(Accumulator accumulator, Purpose purpose, int layer,
                                       std::int64_t at) const {
    accumulator.rounding.stream = StreamOf(purpose, spec.step, layer, at);
    return accumulator;
  }

  /// Rounds a level's sums to the result's format; in place.
  void ToResult(int l, std::int64_t at, std::int64_t begin, std::int64_t n, float* values) const {
    if (spec.result == spec.accumulator.format) return;
    const Accumulator as = WithStream(spec.accumulator, Purpose::result, l, at);
    CastScaled(spec.result, as.rounding, 0, begin, n, values, values);
  }

  void ContributeBlock(int l, std::int64_t begin, std::int64_t n, const float* x) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    RoundingOptions rounding = spec.rounding;
    rounding.stream =
        StreamOf(Purpose::wire, spec.step, l, ranks[static_cast<std::size_t>(position)]);
    float terms[kStage];
    CastScaled(spec.format, rounding, layer.shift, begin, n, x, terms);
    Count(layer, n, x, terms);
    if (!grouped()) return FoldAcross(l, begin, n, terms, spec.format);
    const Accumulator accumulator =
        WithStream(spec.accumulator, Purpose::sum, l, rounds.unit(visit));
    Fold(accumulator, spec.format, member, layer.group, begin, n, terms);
  }

  /// Counts each rank once, at its first visit.
  void Count(Layer& layer, std::int64_t n, const float* x, const float* terms) const {
    if (visit >= rounds.units) return;
    std::int64_t non_finite = 0;
    std::int64_t underflowed = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      non_finite += static_cast<std::int64_t>(!std::isfinite(x[i]));
      underflowed += static_cast<std::int64_t>(x[i] != 0 && terms[i] == 0);
    }
    if (non_finite != 0) layer.non_finite += non_finite;
    if (underflowed != 0) layer.underflowed += underflowed;
  }

  void EndGroup() {
    for (std::size_t index = 0; index < layers.size(); ++index) {
      const int l = static_cast<int>(index);
      Layer& layer = layers[index];
      parallel_for(layer.size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
        float terms[kStage];
        for (std::int64_t i = begin; i < end; i += kStage) {
          const std::int64_t n = std::min(kStage, end - i);
          layer.group.sum.Load(i, n, terms);
          ToResult(l, rounds.unit(visit), i, n, terms);
          FoldAcross(l, i, n, terms, spec.result);
        }
      });
    }
  }

  void EndRank() {
    if (position >= static_cast<std::int64_t>(ranks.size())) {
      throw Error("every rank of the schedule has contributed");
    }
    ++position;
    if (++member < GroupSize(rounds.unit(visit))) return;
    if (grouped()) EndGroup();
    member = 0;
    ++visit;
    if (position < static_cast<std::int64_t>(ranks.size())) return;
    for (Layer& layer : layers) layer.group.Free();
  }
};

VirtualReduce::VirtualReduce(const ReduceSpec& spec, int world,
                             const std::vector<std::int64_t>& sizes)
    : impl_(std::make_unique<Impl>(spec, world, sizes)) {}
VirtualReduce::~VirtualReduce() = default;
VirtualReduce::VirtualReduce(VirtualReduce&&) noexcept = default;
VirtualReduce& VirtualReduce::operator=(VirtualReduce&&) noexcept = default;

bool VirtualReduce::wants_ranges() const { return impl_->spec.aps != Aps::off; }

void VirtualReduce::Observe(int layer, const TensorView& x) {
  Layer& observed = impl_->At(layer, x);
  if (impl_->contributed) throw Error("Observe comes before the first Contribute");
  ++observed.observed;
  observed.exponent =
      std::max(observed.exponent, ApsExponent(MeasureRange(x).max_abs, impl_->world));
}

std::vector<int> VirtualReduce::schedule() const { return impl_->ranks; }

void VirtualReduce::Contribute(int layer, const TensorView& x) {
  Layer& into = impl_->At(layer, x);
  if (impl_->position >= static_cast<std::int64_t>(impl_->ranks.size())) {
    throw Error("every rank of the schedule has contributed");
  }
  if (wants_ranges() && into.observed != impl_->world) {
    throw Error("APS needs Observe for each of the " + std::to_string(impl_->world) +
                " ranks before the first Contribute, got " + std::to_string(into.observed));
  }
  impl_->contributed = true;
  into.shift = impl_->ShiftOf(into);
  const auto* values = static_cast<const float*>(x.data);
  parallel_for(into.size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kStage) {
      impl_->ContributeBlock(layer, i, std::min(kStage, end - i), values + i);
    }
  });
}

void VirtualReduce::EndRank() { impl_->EndRank(); }

void VirtualReduce::Result(int layer, const TensorView& out) {
  Layer& from = impl_->At(layer, out);
  if (impl_->position < static_cast<std::int64_t>(impl_->ranks.size())) {
    throw Error("the result comes after the last rank of the schedule");
  }
  auto* values = static_cast<float*>(out.data);
  const double unscale = std::ldexp(1.0, -from.shift);
  const auto divisor = impl_->spec.average ? static_cast<float>(impl_->world) : 1.0F;
  std::atomic<std::int64_t> non_finite{0};
  parallel_for(from.size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t bad = 0;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      from.across.sum.Load(i, n, values + i);
      impl_->ToResult(layer, kAcross, i, n, values + i);
      for (std::int64_t j = i; j < i + n; ++j) {
        values[j] = static_cast<float>(values[j] * unscale) / divisor;
        bad += static_cast<std::int64_t>(!std::isfinite(values[j]));
      }
    }
    non_finite += bad;
  });
  from.overflowed = from.non_finite == 0 ? non_finite.load() : 0;
}

LayerReport VirtualReduce::report(int layer) const {
  if (layer < 0 || layer >= static_cast<int>(impl_->layers.size())) {
    throw Error("layer must be 0…" + std::to_string(impl_->layers.size() - 1) + ", got " +
                std::to_string(layer));
  }
  const Layer& from = impl_->layers[static_cast<std::size_t>(layer)];
  return {from.shift, from.non_finite, from.overflowed, from.underflowed};
}

}  // namespace cpd
