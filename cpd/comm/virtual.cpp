// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/virtual.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cpd/backend/cpu/spans.h"
#include "cpd/base/parallel.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/reduction.h"
#include "cpd/comm/virtual_sums.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kQuotients = 4096;                    // values divided at once
constexpr std::int64_t kMostValues = std::int64_t{1} << 56;  // their bytes fit std::int64_t

struct Layer {
  std::int64_t size = 0;
  float largest = 0;   // largest magnitude of all ranks
  int observed = 0;    // number of Observe calls
  bool given = false;  // contributed by the current rank
  int shift = 0;
  float scale = 0;         // measured on the current rank, or the largest of all ranks
  SegmentCounts lost;      // of contributions that a codec made on the host
  std::int64_t bytes = 0;  // of the encoded contributions
  std::vector<int> bits;   // the bits that the codec chose, by rank
};

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
  std::vector<float> divided;       // of OnHost
  std::optional<TensorView> first;  // the first layer, whose device all layers share
  std::unique_ptr<VirtualSums> sums;

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

  /// Allocates memory for the sums over ranks, on the device of x, the first layer.
  void Place(const TensorView& x) {
    if (first) return;
    std::vector<std::int64_t> sizes;
    for (const Layer& layer : layers) sizes.push_back(layer.size);
    sums = std::make_unique<VirtualSums>(reduction, sizes, x);
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

  /// Returns the rank that contributes next. Throws Error after the last rank of the schedule.
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

  /// Returns one rank's values of layer l on the host as they enter the reduction. If contributions
  /// are divided first, the returned values are the quotients. They are in `divided`, valid until
  /// the next call.
  const float* OnHost(int l, const TensorView& x) {
    const Layer& layer = layers[static_cast<std::size_t>(l)];
    const float* const values = sums->OnHost(l, x);
    const float divisor = reduction.first_divisor();
    if (divisor == 1) return values;
    divided.resize(static_cast<std::size_t>(layer.size));
    parallel_for(layer.size, kQuotients, kSerialRanksBelow,
                 [&](std::int64_t begin, std::int64_t end) {
                   Unscale(0, divisor, end - begin, values + begin, divided.data() + begin);
                 });
    return divided.data();
  }

  /// Finds one rank's scale for a layer if ranks share scales, and otherwise its largest magnitude.
  /// Stores the maximum over the ranks so far in the layer.
  void Measure(int l, int rank, const TensorView& x) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Codec& wire = *reduction.wire(l);
    const bool shares = reduction.measured() == Measured::shared;
    const Piece whole = reduction.PieceOf(l, rank, shares ? reduction.ShiftOf(0) : 0);
    CodecState* const state = states->Of(wire, {rank, reduction.number(l)}, layer.size);
    const auto by_kernels = [&] {
      return shares ? sums->Measure(x, wire, whole, state) : sums->Largest(x, wire, whole, state);
    };
    const float measured = sums->rounds() ? by_kernels() : MeasuredOnHost(l, x, whole, state);
    if (shares) {
      layer.scale = std::max(layer.scale, measured);
    } else {
      layer.largest = LargerMagnitude(layer.largest, measured);
    }
    if (states == &own_states) own_states = {};
  }

  /// Returns a layer's scale if ranks share scales, and otherwise the layer's largest magnitude.
  [[nodiscard]] float MeasuredOnHost(int l, const TensorView& x, const Piece& whole,
                                     CodecState* state) {
    const Codec& wire = *reduction.wire(l);
    const float* const values = OnHost(l, x);
    if (state != nullptr) state->Begin(whole, values);
    if (reduction.measured() == Measured::shared) return wire.Measure(whole, state, values);
    const auto largest = state == nullptr ? std::nullopt : wire.Largest(*state);
    return largest ? *largest : MeasureRange(View(values, DType::f32, x.size())).max_abs;
  }

  /// Returns the codec's state (such as residuals) of a layer or of a layer's results; null if the
  /// codec has no states. Adds the state to `begun`, the states to commit at the end.
  CodecState* StateOf(const Codec& codec, const CodecStates::Key& key, std::int64_t size) {
    CodecState* const state = states->Of(codec, key, size);
    if (state != nullptr) begun.insert(state);
    return state;
  }

  /// Gives the layer's values x to the codec's state of the current rank (CodecState::Begin), and
  /// measures the layer's scale if each rank has its own. Returns the state; null if the codec has
  /// none.
  CodecState* BeginLayer(int l, const float* x) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const SharedCodec& wire = reduction.wire(l);
    const Piece whole = reduction.PieceOf(l, Rank(), layer.shift);
    CodecState* const state = StateOf(*wire, {Rank(), reduction.number(l)}, layer.size);
    if (state != nullptr) state->Begin(whole, x);
    if (reduction.measured() == Measured::own) layer.scale = wire->Measure(whole, state, x);
    return state;
  }

  /// Encodes and decodes one rank's layer by the codec, on the host, and adds the values to the
  /// sums.
  void ContributeOnHost(int l, const TensorView& x) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const float* const values = OnHost(l, x);
    CodecState* const state = BeginLayer(l, values);
    CountEncoded(l, state, values);
    const Codec& wire = *reduction.wire(l);
    const VirtualSums::Turn turn = Turn();
    sums->Contribute(l, wire.block(), turn, [&](std::int64_t begin, std::int64_t n, float* terms) {
      const float* const own = values + begin;
      wire.Round(reduction.PieceOf(l, Rank(), layer.shift, layer.scale, begin, n), state, own,
                 terms);
      if (!turn.counts) return;
      SegmentCounts lost;
      CountLosses(n, own, terms, lost);
      AddCounts(lost, layer.lost);
    });
  }

  /// For the report: adds the bytes of a rank's encoded layer to the layer's count, and stores the
  /// number of bits that the codec chose. Does so only the first time that the rank contributes.
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

  /// Identifies the current rank's contribution.
  [[nodiscard]] VirtualSums::Turn Turn() const {
    return {Rank(), member, rounds().unit(visit), visit, visit < rounds().units, counts_bytes};
  }

  /// Casts or encodes one rank's layer on the device, and adds the decoded values to the sums.
  void Contribute(int l, const TensorView& x, bool stays) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    const Codec& wire = *reduction.wire(l);
    Piece whole = reduction.PieceOf(l, Rank(), layer.shift, layer.scale, 0, layer.size);
    if (reduction.spec().wire == nullptr) {
      sums->Contribute(l, x, layer.shift, Turn(), stays);
    } else {
      CodecState* const state = StateOf(wire, {Rank(), reduction.number(l)}, layer.size);
      if (reduction.measured() == Measured::own) whole.scale = sums->Measure(x, wire, whole, state);
      sums->Contribute(l, x, wire, whole, state, Turn());
    }
    if (visit < rounds().units && wire.is_fixed()) {
      layer.bytes += LayerBytes(wire, whole, nullptr, nullptr);
    }
  }

  /// Replaces a layer's sums by the values that its owners would encode and send.
  void EncodeResults(int l) {
    const SharedCodec& codec = reduction.results(l);
    if (codec == nullptr) return;
    const Layer& layer = layers[static_cast<std::size_t>(l)];
    const Piece whole = reduction.ResultPiece(l, 0, layer.size);
    CodecState* const state = StateOf(*codec, {0, reduction.number(l), Stage::result}, layer.size);
    if (sums->rounds()) return sums->EncodeResults(l, *codec, whole, state);
    if (state != nullptr) state->Begin(whole, nullptr);
    sums->ChangeResults(l, codec->block(), [&](std::int64_t begin, std::int64_t n, float* values) {
      codec->Round(reduction.ResultPiece(l, begin, n), state, values, values);
    });
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
    if (ends && reduction.grouped() && sums != nullptr) sums->EndGroup(Turn());
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
    if (sums != nullptr) sums->End();
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
  impl_->Measure(layer, observed.observed, x);
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
  if (impl_->sums->rounds()) return impl_->Contribute(layer, x, stays);
  impl_->ContributeOnHost(layer, x);
}

void VirtualReduce::EndRank() { impl_->EndRank(); }
void VirtualReduce::Commit() { impl_->Commit(); }

void VirtualReduce::Result(int layer, const TensorView& out) {
  Layer& from = impl_->At(layer, out);
  impl_->CheckEnded("the result comes");
  const bool shares = impl_->reduction.measured() == Measured::shared;
  impl_->sums->Result(layer, from.shift, shares ? from.scale : 1, out);
}

TensorReport VirtualReduce::report(int layer) const {
  if (layer < 0 || layer >= static_cast<int>(impl_->layers.size())) {
    throw Error("layer must be 0…" + std::to_string(impl_->layers.size() - 1) + ", got " +
                std::to_string(layer));
  }
  const Layer& from = impl_->layers[static_cast<std::size_t>(layer)];
  const Losses lost = LossesOf(from.lost);
  TensorReport report{.shift = from.shift,
                      .non_finite = lost.non_finite,
                      .underflowed = lost.underflowed,
                      .values = from.size * impl_->reduction.world(),
                      .zeros = lost.zeros,
                      .bytes = from.bytes,
                      .bits = from.bits};
  if (impl_->sums == nullptr) return report;
  const auto [contributions, bad_results, bytes] = impl_->sums->counts(layer);
  report.non_finite += contributions.non_finite;
  report.underflowed += contributions.underflowed;
  report.zeros += contributions.zeros;
  report.bytes += bytes;
  if (report.non_finite == 0) report.overflowed = bad_results;
  report.staged_bytes = impl_->sums->staged_bytes(layer);
  return report;
}

}  // namespace cpd
