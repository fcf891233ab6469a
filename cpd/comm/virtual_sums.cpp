// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/virtual_sums.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "cpd/backend/cpu/spans.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/engine/stream_order.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {

struct VirtualSums::Layer {
  std::int64_t size = 0;
  std::shared_ptr<float> group, across;
  std::shared_ptr<std::uint16_t> halves;             ///< in place of `across`
  std::shared_ptr<SegmentCounts> counts;             ///< of the contributions, and of the result
  std::vector<std::function<std::int64_t()>> bytes;  ///< of contributions
  struct Kept {
    VirtualCall call;
    bool counts = false;
    void* stream = nullptr;  ///< of the ranks' values
  };
  std::optional<Kept> kept;  ///< ranks that wait to be added

  [[nodiscard]] SegmentCounts* of_result() const { return counts.get() + 1; }
};

namespace {

/// Gives a layer's values x to a codec's state (CodecState::BeginOn). The destructor frees the
/// memory that the state needed for the layer (CodecState::Free). A null state is ignored.
class BegunState {
 public:
  BegunState(const SharedQueue& queue, CodecState* state, const Piece& whole, const float* x)
      : state_(state) {
    if (state == nullptr) return;
    try {
      state->BeginOn(queue, whole, x);
    } catch (...) {
      state->Free();
      throw;
    }
  }
  ~BegunState() {
    if (state_ != nullptr) state_->Free();
  }
  BegunState(const BegunState&) = delete;
  BegunState& operator=(const BegunState&) = delete;

 private:
  CodecState* state_;
};

/// Returns whether bfloat16 has every value of the format.
bool FitsHalves(const Format& format) {
  return format.man <= 7 && format.min_quantum_exponent() >= -133;
}
bool FitsHalves(const Reduction& reduction) {
  const Reduce& spec = reduction.spec();
  return reduction.grouped() && spec.accumulator.scheme == Scheme::kahan &&
         FitsHalves(spec.accumulator.format) && FitsHalves(spec.result) &&
         reduction.results(0) == nullptr;
}

}  // namespace

VirtualSums::VirtualSums(const Reduction& reduction, const std::vector<std::int64_t>& sizes,
                         const TensorView& first)
    : reduction_(reduction),
      queue_(std::make_shared<Queue>(first)),
      on_host_(first.on_host()),
      terms_(QueuedValues(queue_, std::ranges::max(sizes))),
      across_(CallOf(reduction.Across())),
      group_(CallOf(reduction.Group())),
      copies_(queue_) {
  const int across = reduction.Across().planes();
  const int group = reduction.Group().planes();
  const bool halves = on_host_ && FitsHalves(reduction);
  for (const std::int64_t size : sizes) {
    Layer& layer = layers_.emplace_back();
    layer.size = size;
    if (halves) {
      layer.halves = QueuedValues<std::uint16_t>(queue_, size * across);
    } else {
      layer.across = QueuedValues(queue_, size * across);
    }
    if (reduction.grouped()) layer.group = QueuedValues(queue_, size * group);
    layer.counts = QueuedValues<SegmentCounts>(queue_, 2);
    queue_->Clear(layer.counts.get(), 2 * sizeof(SegmentCounts));
  }
}
VirtualSums::~VirtualSums() = default;

VirtualSums::Layer& VirtualSums::At(int layer) { return layers_[static_cast<std::size_t>(layer)]; }
const VirtualSums::Layer& VirtualSums::At(int layer) const {
  return layers_[static_cast<std::size_t>(layer)];
}

bool VirtualSums::rounds() const {
  return reduction_.spec().wire == nullptr || (!on_host_ && reduction_.rounds_on_devices());
}

float VirtualSums::Largest(const TensorView& x, const Codec& codec, const Piece& whole,
                           CodecState* state) const {
  queue_->Follow(x.stream);
  if (state != nullptr) {
    const auto values = Entering(x);
    const BegunState begun(queue_, state, whole, values.get());
    if (const auto largest = codec.LargestOn(*queue_, *state)) return *largest;
  }
  const float largest = MeasureRanges(*queue_, {&x, 1})[0].max_abs;
  float entering = largest;  // rounding keeps the order of magnitudes
  Unscale(0, reduction_.first_divisor(), 1, &largest, &entering);
  return entering;
}

VirtualCall VirtualSums::CallOf(const Level& level) const {
  const Reduce& spec = reduction_.spec();
  VirtualCall call;
  call.cast = PlanOf(spec.format, spec.rounding, {.seed = reduction_.seed()});
  call.terms = terms_.get();
  call.plan = SumPlanOf(level);
  call.rounds = reduction_.rounds();
  call.count = level.terms;
  return call;
}

VirtualCall VirtualSums::CallOf(const VirtualCall& level, int layer, std::int64_t position) const {
  const auto stream = [&](Purpose purpose) {
    return StreamOf(purpose, reduction_.step(), reduction_.number(layer), position);
  };
  VirtualCall call = level;
  call.size = call.end = At(layer).size;
  call.sum_stream = stream(Purpose::sum);
  call.result_stream = stream(Purpose::result);
  return call;
}

VirtualCall VirtualSums::AcrossCall(int layer, std::int64_t visit) const {
  VirtualCall call = CallOf(across_, layer, kAcross);
  call.planes = At(layer).across.get();
  call.halves = At(layer).halves.get();
  call.visit = visit;
  return call;
}

VirtualCall VirtualSums::TurnCall(int layer, const Turn& turn) const {
  if (!reduction_.grouped()) return AcrossCall(layer, turn.visit);
  VirtualCall call = CallOf(group_, layer, turn.unit);
  call.planes = At(layer).group.get();
  call.count = reduction_.group_size(turn.unit);
  call.k = turn.member;
  return call;
}

void VirtualSums::Contribute(int layer, const TensorView& x, int shift, const Turn& turn,
                             bool stays) {
  Layer& to = At(layer);
  if (to.size == 0) return;
  if (to.kept && to.kept->stream != x.stream) Fold(to);
  if (!to.kept) {
    to.kept = {TurnCall(layer, turn), turn.counts, x.stream};
    VirtualCall& call = to.kept->call;
    call.ranks = 0;
    call.casts = true;
    call.divisor = reduction_.first_divisor();
    call.shift = BoundedShift(shift);
  }
  VirtualCall& call = to.kept->call;
  call.x[call.ranks] = static_cast<const float*>(x.data);
  call.cast_stream[call.ranks] =
      StreamOf(Purpose::wire, reduction_.step(), reduction_.number(layer), turn.rank);
  const bool is_full = ++call.ranks == kMostPassRanks || call.rounds.order == Order::ring;
  if (is_full || !stays) Fold(to);
}

void VirtualSums::Fold(Layer& layer) {
  auto kept = std::exchange(layer.kept, std::nullopt);
  const StreamOrder order(queue_, kept->stream);
  if (kept->counts) kept->call.counts = layer.counts.get();
  queue_->fold_ranks(kept->call);
}

void VirtualSums::FoldKept() {
  for (Layer& layer : layers_) {
    if (layer.kept) Fold(layer);
  }
}

void VirtualSums::End() {
  FoldKept();
  for (Layer& layer : layers_) layer.group = nullptr;
}

std::shared_ptr<const float> VirtualSums::Entering(const TensorView& x) const {
  const float divisor = reduction_.first_divisor();
  if (divisor != 1) return Quotients(queue_, {&x, 1}, divisor)[0];
  return {std::shared_ptr<void>(), static_cast<const float*>(x.data)};
}

float VirtualSums::Measure(const TensorView& x, const Codec& codec, const Piece& whole,
                           CodecState* state) const {
  queue_->Follow(x.stream);
  const auto values = Entering(x);
  const BegunState begun(queue_, state, whole, values.get());
  return codec.MeasureOn(*queue_, whole, state, values.get());
}

void VirtualSums::Contribute(int layer, const TensorView& x, const Codec& codec, const Piece& whole,
                             CodecState* state, const Turn& turn) {
  Layer& to = At(layer);
  if (to.size == 0) return;
  {
    const StreamOrder order(queue_, x.stream);
    const auto values = Entering(x);
    const BegunState begun(queue_, state, whole, values.get());
    const bool counts_bytes = turn.counts && turn.counts_bytes && !codec.is_fixed();
    if (counts_bytes) to.bytes.push_back(codec.BytesOn(queue_, whole, state, values.get()));
    codec.RoundOn(*queue_, whole, state, values.get(), terms_.get(),
                  turn.counts ? to.counts.get() : nullptr);
  }
  AddTerms(layer, turn);
}

void VirtualSums::AddTerms(int layer, const Turn& turn) const {
  VirtualCall call = TurnCall(layer, turn);
  call.x[0] = terms_.get();
  queue_->fold_ranks(call);
}

void VirtualSums::Contribute(int layer, std::int64_t block, const Turn& turn, const Make& make) {
  Layer& to = At(layer);
  if (to.size == 0) return;
  const VirtualCall turns = TurnCall(layer, turn);
  const auto all = on_host_ ? nullptr : copies_.Allocate(to.size);
  parallel_for(to.size, block, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
    const AlignedRows own(1, on_host_ ? std::min(block, end - begin) : 0);
    for (std::int64_t i = begin; i < end; i += block) {
      const std::int64_t n = std::min(block, end - i);
      float* const terms = on_host_ ? own[0] : all.get() + i;
      make(i, n, terms);
      if (!on_host_) continue;
      VirtualCall call = turns;
      call.begin = i;
      call.end = i + n;
      call.x[0] = terms;
      queue_->fold_ranks(call);
    }
  });
  if (on_host_) return;
  copies_.Copy(static_cast<std::size_t>(layer), terms_.get(), all.get(), to.size);
  AddTerms(layer, turn);
}

void VirtualSums::EncodeResults(int layer, const Codec& codec, const Piece& whole,
                                CodecState* state) {
  if (At(layer).size == 0) return;
  float* const sums = At(layer).across.get();
  const BegunState begun(queue_, state, whole, nullptr);
  codec.RoundOn(*queue_, whole, state, sums, sums);
}

void VirtualSums::ChangeResults(int layer, std::int64_t block, const Make& change) {
  Layer& of = At(layer);
  const auto l = static_cast<std::size_t>(layer);
  const auto sums = copies_.Fetch(l, of.across.get(), of.size);
  parallel_for(of.size, block, kSerialRanksBelow, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += block) {
      change(i, std::min(block, end - i), sums.get() + i);
    }
  });
  copies_.Copy(l, of.across.get(), sums.get(), of.size);
}

const float* VirtualSums::OnHost(int layer, const TensorView& x) {
  queue_->Follow(x.stream);
  const auto* values = static_cast<const float*>(x.data);
  fetched_ = copies_.Fetch(static_cast<std::size_t>(layer), values, At(layer).size);
  return fetched_.get();
}

void VirtualSums::EndGroup(const Turn& turn) {
  FoldKept();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].size == 0) continue;
    VirtualCall call = AcrossCall(static_cast<int>(l), turn.visit);
    call.x[0] = layers_[l].group.get();
    queue_->fold_ranks(call);
  }
}

void VirtualSums::Result(int layer, int shift, float scale, const TensorView& out) {
  const Layer& from = At(layer);
  if (from.size == 0) return;
  VirtualCall call = AcrossCall(layer, 0);
  call.shift = BoundedShift(shift);
  call.divisor = reduction_.divisor();
  call.scale = scale;
  const StreamOrder order(queue_, out.stream);
  queue_->Clear(from.of_result(), sizeof(SegmentCounts));
  call.out = static_cast<float*>(out.data);
  call.counts = from.of_result();
  queue_->finish_sums(call);
}

VirtualSums::Counts VirtualSums::counts(int layer) const {
  const Layer& of = At(layer);
  std::array<SegmentCounts, 2> counts;
  queue_->Copy(counts.data(), of.counts.get(), sizeof(counts));
  std::int64_t bytes = 0;
  for (const auto& count : of.bytes) bytes += count();
  return {LossesOf(counts[0]), static_cast<std::int64_t>(counts[1].non_finite), bytes};
}

}  // namespace cpd
