// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/virtual.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/comm/explain.h"
#include "cpd/comm/reduction.h"
#include "cpd/comm/virtual_cuda.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kStage = 4096;  // sums processed at once, a multiple of kBlock
constexpr std::int64_t kMostValues = std::int64_t{1} << 56;  // their bytes fit std::int64_t

/// The planes that term k reads or writes: in scheme pairwise, one more than the trees open before
/// it.
int PlanesOfTerm(const Level& level, std::int64_t k) {
  if (level.accumulator.scheme != Scheme::pairwise) return level.planes();
  return std::popcount(static_cast<std::uint64_t>(k)) + 1;
}

/// The running sums of one layer at one level, plane by plane; in half the memory where every value
/// has at most 8 significant bits and so zeros in the low half of its pattern.
class Sums {
 public:
  void Resize(std::int64_t size, int planes, bool halves) {
    size_ = size;
    const auto values = static_cast<std::size_t>(size * planes);
    if (halves) {
      short_ = std::make_unique_for_overwrite<std::uint16_t[]>(values);
    } else {
      full_ = std::make_unique_for_overwrite<float[]>(values);
    }
  }

  /// Adds term k of values begin … begin + n - 1.
  void Take(const Level& level, std::int64_t k, std::int64_t begin, std::int64_t n,
            const float* terms) {
    if (full_ != nullptr) {
      return Reduction::Take(level, k, {&terms, 1}, begin, n, {full_.get() + begin, size_});
    }
    const int planes = PlanesOfTerm(level, k);
    const auto state =
        std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(planes * n));
    if (k > 0) {
      for (int q = 0; q < planes; ++q) Widen(q, begin, n, state.get() + q * n);
    }
    Reduction::Take(level, k, {&terms, 1}, begin, n, {state.get(), n});
    for (int q = 0; q < planes; ++q) Narrow(q, begin, n, state.get() + q * n);
  }

  /// Writes plane 0.
  void Store(std::int64_t begin, std::int64_t n, const float* from) {
    std::copy_n(from, n, full_.get() + begin);
  }

  /// Reads plane 0, which after the last term holds the level's sums.
  void Load(std::int64_t begin, std::int64_t n, float* to) const {
    if (full_ == nullptr) return Widen(0, begin, n, to);
    std::copy_n(full_.get() + begin, n, to);
  }

 private:
  void Widen(int plane, std::int64_t begin, std::int64_t n, float* to) const {
    const std::uint16_t* from = short_.get() + plane * size_ + begin;
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
    }
  }
  void Narrow(int plane, std::int64_t begin, std::int64_t n, const float* from) {
    std::uint16_t* to = short_.get() + plane * size_ + begin;
    for (std::int64_t i = 0; i < n; ++i) {
      to[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(from[i]) >> 16);
    }
  }

  std::int64_t size_ = 0;
  std::unique_ptr<float[]> full_;
  std::unique_ptr<std::uint16_t[]> short_;
};

struct Layer {
  std::int64_t size = 0;
  float largest = 0;   // magnitude on all ranks
  int observed = 0;    // by how many ranks
  bool given = false;  // contributed by the rank whose turn it is
  int shift = 0;
  float scale = 0;  // measured: of the rank whose turn it is, or the largest of all
  Sums group, across;
  std::atomic<std::int64_t> non_finite{0};
  std::atomic<std::int64_t> underflowed{0};
  std::atomic<std::int64_t> zeros{0};
  std::int64_t bad_results = 0;  // NaN and infinities, of layers on the CPU
  std::int64_t bytes = 0;        // of the encoded contributions
  std::vector<int> bits;         // that the codec chose, by rank
};

bool FitsHalves(const Format& format) {
  return format.man <= 7 && format.min_quantum_exponent() >= -133;
}

}  // namespace

struct VirtualReduce::Impl {
  Reduction reduction;
  std::vector<Layer> layers;
  std::int64_t position = 0;  // in the schedule
  std::int64_t visit = 0;     // of the rounds
  std::int64_t member = 0;    // of the visit's group
  std::vector<int> ranks;     // the schedule
  bool contributed = false;
  CodecStates* states;     // the caller's, or own_states
  CodecStates own_states;  // of this reduction alone
  bool commits;
  bool counts_bytes;
  std::set<CodecState*> begun;
  std::vector<float> divided;       // of Entering
  std::optional<TensorView> first;  // a layer, for where all are
  std::unique_ptr<VirtualSumsOnGpu> gpu;

  Impl(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
       const TensorOptions& options)
      : reduction(spec, world, Checked(sizes), options),
        layers(sizes.size()),
        states(options.states == nullptr ? &own_states : options.states),
        commits(options.commits),
        counts_bytes(options.counts_bytes) {
    if (spec.wire != nullptr) states->Claim({world, {}});
    for (std::size_t l = 0; l < sizes.size(); ++l) layers[l].size = sizes[l];
    MakeSchedule();
  }

  /// Makes the memory of sums where the first layer is.
  void Place(const TensorView& x) {
    if (first) return;
    if (!x.on_host()) {
      std::vector<std::int64_t> sizes;
      for (const Layer& layer : layers) sizes.push_back(layer.size);
      gpu = std::make_unique<VirtualSumsOnGpu>(reduction, sizes, x);
      first = x;
      return;
    }
    const Reduce& spec = reduction.spec();
    const bool kahan = spec.accumulator.scheme == Scheme::kahan;
    const bool halves = reduction.grouped() && kahan && FitsHalves(spec.accumulator.format) &&
                        FitsHalves(spec.result) && reduction.results(0) == nullptr;
    const int across = reduction.Across(0).planes();
    const int group = reduction.Group(0, 0).planes();
    for (Layer& layer : layers) {
      layer.across.Resize(layer.size, across, halves);
      if (reduction.grouped()) layer.group.Resize(layer.size, group, false);
    }
    first = x;
  }

  static const std::vector<std::int64_t>& Checked(const std::vector<std::int64_t>& sizes) {
    for (const std::int64_t size : sizes) {
      if (size >= 0 && size <= kMostValues) continue;
      throw Error("a tensor's size must be 0…2^56, got " + std::to_string(size));
    }
    return sizes;
  }

  [[nodiscard]] const Rounds& rounds() const { return reduction.rounds(); }

  void MakeSchedule() {
    for (std::int64_t v = 0; v < rounds().visits(); ++v) {
      const std::int64_t unit = rounds().unit(v);
      for (std::int64_t m = 0; m < reduction.group_size(unit); ++m) {
        ranks.push_back(static_cast<int>(reduction.group_begin(unit) + m));
      }
    }
  }

  /// The rank whose turn it is; throws Error after the schedule's last.
  [[nodiscard]] int Rank() const {
    if (position < static_cast<std::int64_t>(ranks.size())) {
      return ranks[static_cast<std::size_t>(position)];
    }
    throw Error("every rank of the schedule has contributed");
  }

  [[nodiscard]] Layer& At(int layer, const TensorView& x) {
    Check(x, "a tensor");
    if (layer < 0 || layer >= static_cast<int>(layers.size())) {
      throw Error("layer must be 0…" + std::to_string(layers.size() - 1) + ", got " +
                  std::to_string(layer));
    }
    Layer& found = layers[static_cast<std::size_t>(layer)];
    if (x.dtype != DType::f32 || !x.is_contiguous()) {
      const std::string how = x.is_contiguous() ? "" : ", not contiguous";
      throw Error("a tensor must be contiguous fp32, got " + ToString(x.dtype) + how);
    }
    Place(x);
    if (!IsTogether(x, *first)) {
      throw Error("all tensors must be on one device, got one " + PlaceOf(*first) + ", one " +
                  PlaceOf(x));
    }
    if (x.size() != found.size) {
      throw Error("tensor " + std::to_string(layer) + " has " + std::to_string(found.size) +
                  " values, got " + std::to_string(x.size()));
    }
    return found;
  }

  /// Adds a block of terms to the outer sums, slice by slice.
  void TakeAcross(int l, std::int64_t begin, std::int64_t n, const float* terms) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Level level = reduction.Across(l);
    for (std::int64_t i = begin; i < begin + n;) {
      const std::int64_t slice = rounds().slice_of(layer.size, i);
      const std::int64_t end = std::min(begin + n, rounds().begin(layer.size, slice + 1));
      const std::int64_t k = rounds().term(visit, slice);
      if (k >= 0) layer.across.Take(level, k, i, end - i, terms + (i - begin));
      i = end;
    }
  }

  /// Whether kernels make the contributions; a codec without kernels makes them on the host.
  [[nodiscard]] bool rounds_on_gpu() const { return gpu != nullptr && reduction.rounds_on_gpu(); }

  /// A rank's values of layer l as they enter the reduction: where they are divided first, the
  /// quotients, in `divided` until the next call. On a GPU where that rounds them, undivided.
  const float* Entering(int l, const TensorView& x) {
    const Layer& layer = layers[static_cast<std::size_t>(l)];
    const auto* values = static_cast<const float*>(x.data);
    if (rounds_on_gpu()) return values;
    if (gpu != nullptr) values = gpu->Staged(l, x);
    const float divisor = reduction.first_divisor();
    if (divisor == 1) return values;
    divided.resize(static_cast<std::size_t>(layer.size));
    parallel_for(layer.size, kStage, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
      Unscale(0, divisor, end - begin, values + begin, divided.data() + begin);
    });
    return divided.data();
  }

  /// Measures a rank's layer, which enters the reduction as `values`: the scale that ranks share,
  /// or its largest magnitude.
  void Measure(int l, int rank, const TensorView& x, const float* values) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const SharedCodec& wire = reduction.wire(l);
    const bool shares = reduction.measured() == Measured::shared;
    const Piece whole = reduction.PieceOf(l, rank, shares ? reduction.ShiftOf(0) : 0);
    CodecState* const state = states->Of(*wire, {rank, reduction.number(l)}, layer.size);
    const float measured = rounds_on_gpu() ? MeasuredOnGpu(x, *wire, whole, state)
                                           : MeasuredOnHost(x, *wire, whole, state, values);
    if (shares) {
      layer.scale = std::max(layer.scale, measured);
    } else {
      layer.largest = LargerMagnitude(layer.largest, measured);
    }
    if (states == &own_states) own_states = {};
  }

  /// A layer's scale, where ranks share it, else its largest magnitude.
  [[nodiscard]] float MeasuredOnGpu(const TensorView& x, const Codec& wire, const Piece& whole,
                                    CodecState* state) const {
    if (reduction.measured() == Measured::shared) return gpu->Measure(x, wire, whole, state);
    return reduction.spec().wire == nullptr ? gpu->Largest(x) : gpu->Largest(x, wire, whole, state);
  }
  [[nodiscard]] float MeasuredOnHost(const TensorView& x, const Codec& wire, const Piece& whole,
                                     CodecState* state, const float* values) const {
    if (state != nullptr) state->Begin(whole, values);
    if (reduction.measured() == Measured::shared) return wire.Measure(whole, state, values);
    std::optional<float> largest;
    if (state != nullptr) largest = wire.Largest(*state);
    TensorView entering = x;
    entering.device = Device::cpu;
    entering.data = const_cast<float*>(values);
    return largest ? *largest : MeasureRange(entering).max_abs;
  }

  /// The codec's state of a layer or its results, which the call has begun; null where there is
  /// none.
  CodecState* StateOf(const Codec& codec, const CodecStates::Key& key, std::int64_t size) {
    CodecState* const state = states->Of(codec, key, size);
    if (state != nullptr) begun.insert(state);
    return state;
  }

  /// Begins the codec's state of the layer for the rank whose turn it is, and returns it; null
  /// where there is none.
  CodecState* BeginLayer(int l, const float* x) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const SharedCodec& wire = reduction.wire(l);
    const Piece whole = reduction.PieceOf(l, Rank(), layer.shift);
    CodecState* const state = StateOf(*wire, {Rank(), reduction.number(l)}, layer.size);
    if (state != nullptr) state->Begin(whole, x);
    if (reduction.measured() == Measured::own) layer.scale = wire->Measure(whole, state, x);
    return state;
  }

  /// Adds what the codec makes of n values of the rank's layer; `terms` is memory for n values.
  void ContributeBlock(int l, CodecState* state, std::int64_t begin, std::int64_t n, const float* x,
                       float* terms) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const int rank = ranks[static_cast<std::size_t>(position)];
    const Piece piece = reduction.PieceOf(l, rank, layer.shift, layer.scale, begin, n);
    reduction.wire(l)->Round(piece, state, x, terms);
    if (visit < rounds().units) Count(layer, n, x, terms);  // each rank once, at its first visit
    if (gpu != nullptr) return;                             // which takes the whole layer's
    if (!reduction.grouped()) return TakeAcross(l, begin, n, terms);
    layer.group.Take(reduction.Group(l, rounds().unit(visit)), member, begin, n, terms);
  }

  static void Count(Layer& layer, std::int64_t n, const float* x, const float* terms) {
    const Losses losses = CountLosses(n, x, terms);
    if (losses.non_finite != 0) layer.non_finite += losses.non_finite;
    if (losses.underflowed != 0) layer.underflowed += losses.underflowed;
    if (losses.zeros != 0) layer.zeros += losses.zeros;
  }

  /// Counts, at a rank's first visit, the bytes of its layer and the bits that its codec chose.
  void CountEncoded(int l, CodecState* state, const float* x) {
    if (visit >= rounds().units) return;
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Codec& wire = *reduction.wire(l);
    if (const auto bits = state == nullptr ? std::nullopt : state->ChosenBits()) {
      layer.bits.resize(static_cast<std::size_t>(reduction.world()));
      layer.bits[static_cast<std::size_t>(Rank())] = *bits;
    }
    if (!counts_bytes && !wire.is_fixed()) return;
    const Piece whole = reduction.PieceOf(l, Rank(), layer.shift, layer.scale, 0, layer.size);
    layer.bytes += LayerBytes(wire, whole, state, x);
  }

  /// The turn of the rank that contributes.
  [[nodiscard]] VirtualSumsOnGpu::Turn Turn() const {
    return {Rank(), member, rounds().unit(visit), visit, visit < rounds().units, counts_bytes};
  }

  /// Adds a rank's layer, on a GPU, to its sums there.
  void ContributeOnGpu(int l, const TensorView& x, bool stays) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Codec& wire = *reduction.wire(l);
    Piece whole = reduction.PieceOf(l, Rank(), layer.shift, layer.scale, 0, layer.size);
    if (reduction.spec().wire == nullptr) {
      gpu->Contribute(l, x, layer.shift, Turn(), stays);
    } else {
      CodecState* const state = StateOf(wire, {Rank(), reduction.number(l)}, layer.size);
      if (reduction.measured() == Measured::own) whole.scale = gpu->Measure(x, wire, whole, state);
      gpu->Contribute(l, x, wire, whole, state, Turn());
    }
    if (visit < rounds().units && wire.is_fixed()) {
      layer.bytes += LayerBytes(wire, whole, nullptr, nullptr);
    }
  }

  void EndGroup() {
    if (gpu != nullptr) return gpu->EndGroup(Turn());
    for (std::size_t index = 0; index < layers.size(); ++index) {
      const int l = static_cast<int>(index);
      const Layer& layer = layers[index];
      parallel_for(layer.size, kStage, kSerialRanksBelow,
                   [&](std::int64_t begin, std::int64_t end) {
                     float terms[kStage];
                     for (std::int64_t i = begin; i < end; i += kStage) {
                       const std::int64_t n = std::min(kStage, end - i);
                       layer.group.Load(i, n, terms);
                       TakeAcross(l, i, n, terms);
                     }
                   });
    }
  }

  /// Replaces the layer's sums by what their owners encode, decoded again.
  void EncodeResults(int l) {
    const SharedCodec& codec = reduction.results(l);
    if (codec == nullptr) return;
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Piece whole = reduction.ResultPiece(l, 0, layer.size);
    CodecState* const state = StateOf(*codec, {0, reduction.number(l), Stage::result}, layer.size);
    if (rounds_on_gpu()) return gpu->EncodeResults(l, *codec, whole, state);
    if (state != nullptr) state->Begin(whole, nullptr);
    const std::int64_t block = codec->block();
    const auto all = gpu == nullptr ? nullptr : gpu->Sums(l);
    parallel_for(layer.size, block, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> own(static_cast<std::size_t>(std::min(block, end - begin)));
      for (std::int64_t i = begin; i < end; i += block) {
        const std::int64_t n = std::min(block, end - i);
        float* const sums = gpu == nullptr ? own.data() : all.get() + i;
        if (gpu == nullptr) layer.across.Load(i, n, sums);
        codec->Round(reduction.ResultPiece(l, i, n), state, sums, sums);
        if (gpu == nullptr) layer.across.Store(i, n, sums);
      }
    });
    if (gpu != nullptr) gpu->SetSums(l, all.get());
  }

  void EndRank() {
    const int rank = Rank();
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (layers[l].given) continue;
      throw Error("rank " + std::to_string(rank) + " has not contributed tensor " +
                  std::to_string(l) + " yet");
    }
    for (Layer& layer : layers) layer.given = false;
    const bool ends = member + 1 == reduction.group_size(rounds().unit(visit));
    if (ends && reduction.grouped()) EndGroup();
    ++position;
    if (states == &own_states) {  // a rank's second visit begins without states, too
      begun.clear();
      own_states = {};
    }
    ++member;
    if (!ends) return;
    member = 0;
    ++visit;
    if (position < static_cast<std::int64_t>(ranks.size())) return;
    if (gpu != nullptr) gpu->FoldKept();
    for (Layer& layer : layers) layer.group = {};
    for (std::size_t l = 0; l < layers.size(); ++l) EncodeResults(static_cast<int>(l));
    if (commits) Commit();
  }

  void Commit() {
    CheckEnded("the states are kept");
    for (CodecState* state : begun) state->Commit();
    begun.clear();
  }

  void CheckEnded(const char* what) const {
    if (position < static_cast<std::int64_t>(ranks.size())) {
      throw Error(std::string(what) + " after the last rank of the schedule");
    }
  }
};

VirtualReduce::VirtualReduce(const Reduce& spec, int world, const std::vector<std::int64_t>& sizes,
                             const TensorOptions& layers)
    : impl_(std::make_unique<Impl>(spec, world, sizes, layers)) {}
VirtualReduce::~VirtualReduce() = default;
VirtualReduce::VirtualReduce(VirtualReduce&&) noexcept = default;
VirtualReduce& VirtualReduce::operator=(VirtualReduce&&) noexcept = default;

bool VirtualReduce::wants_ranges() const {
  return impl_->reduction.spec().aps != Aps::off || impl_->reduction.measured() == Measured::shared;
}

void VirtualReduce::Observe(int layer, const TensorView& x) {
  Layer& observed = impl_->At(layer, x);
  if (impl_->contributed) throw Error("Observe comes before the first Contribute");
  if (observed.observed == impl_->reduction.world()) {
    throw Error("tensor " + std::to_string(layer) + " was observed on all " +
                std::to_string(observed.observed) + " ranks");
  }
  const float* values = impl_->Entering(layer, x);
  impl_->Measure(layer, observed.observed, x, values);
  ++observed.observed;
}

std::vector<int> VirtualReduce::schedule() const { return impl_->ranks; }

void VirtualReduce::Contribute(int layer, const TensorView& x, bool stays) {
  Layer& into = impl_->At(layer, x);
  const int rank = impl_->Rank();
  if (into.given) {
    throw Error("rank " + std::to_string(rank) + " has contributed tensor " +
                std::to_string(layer) + " before EndRank; each rank gives each tensor once");
  }
  if (wants_ranges() && into.observed != impl_->reduction.world()) {
    throw Error(std::string(impl_->reduction.spec().aps != Aps::off ? "APS" : "a shared scale") +
                " needs Observe for each of the " + std::to_string(impl_->reduction.world()) +
                " ranks before the first Contribute, got " + std::to_string(into.observed));
  }
  impl_->contributed = true;
  into.given = true;
  into.shift = impl_->reduction.ShiftOf(into.largest);
  if (impl_->rounds_on_gpu()) return impl_->ContributeOnGpu(layer, x, stays);
  const float* values = impl_->Entering(layer, x);
  CodecState* state = impl_->BeginLayer(layer, values);
  impl_->CountEncoded(layer, state, values);
  VirtualSumsOnGpu* const gpu = impl_->gpu.get();
  const auto all = gpu == nullptr ? nullptr : gpu->OnHost(layer);
  const std::int64_t block = impl_->reduction.wire(layer)->block();
  parallel_for(into.size, block, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> own(static_cast<std::size_t>(std::min(block, end - begin)));
    for (std::int64_t i = begin; i < end; i += block) {
      float* const terms = gpu == nullptr ? own.data() : all.get() + i;
      impl_->ContributeBlock(layer, state, i, std::min(block, end - i), values + i, terms);
    }
  });
  if (gpu != nullptr) gpu->ContributeTerms(layer, all.get(), impl_->Turn());
}

void VirtualReduce::EndRank() { impl_->EndRank(); }
void VirtualReduce::Commit() { impl_->Commit(); }

void VirtualReduce::Result(int layer, const TensorView& out) {
  Layer& from = impl_->At(layer, out);
  impl_->CheckEnded("the result comes");
  if (impl_->gpu != nullptr) {
    const bool shares = impl_->reduction.measured() == Measured::shared;
    return impl_->gpu->Result(layer, from.shift, shares ? from.scale : 1, out);
  }
  auto* values = static_cast<float*>(out.data);
  std::atomic<std::int64_t> non_finite{0};
  parallel_for(from.size, kStage, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t bad = 0;
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      from.across.Load(i, n, values + i);
      impl_->reduction.Finish(from.shift, from.scale, n, values + i);
      for (std::int64_t j = i; j < i + n; ++j) {
        bad += static_cast<std::int64_t>(!std::isfinite(values[j]));
      }
    }
    non_finite += bad;
  });
  from.bad_results = non_finite;
}

TensorReport VirtualReduce::report(int layer) const {
  if (layer < 0 || layer >= static_cast<int>(impl_->layers.size())) {
    throw Error("layer must be 0…" + std::to_string(impl_->layers.size() - 1) + ", got " +
                std::to_string(layer));
  }
  const Layer& from = impl_->layers[static_cast<std::size_t>(layer)];
  TensorReport report{.shift = from.shift,
                      .non_finite = from.non_finite,
                      .underflowed = from.underflowed,
                      .values = from.size * impl_->reduction.world(),
                      .zeros = from.zeros,
                      .bytes = from.bytes,
                      .bits = from.bits};
  std::int64_t bad_results = from.bad_results;
  if (impl_->gpu != nullptr) {
    const auto [contributions, bad, bytes] = impl_->gpu->counts(layer);
    if (impl_->rounds_on_gpu()) {
      report.non_finite = contributions.non_finite;
      report.underflowed = contributions.underflowed;
      report.zeros = contributions.zeros;
      report.bytes += bytes;
    }
    bad_results = bad;
    report.staged_bytes = impl_->gpu->staged_bytes(layer);
  }
  if (report.non_finite == 0) report.overflowed = bad_results;
  return report;
}

}  // namespace cpd
