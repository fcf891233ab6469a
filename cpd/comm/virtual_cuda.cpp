// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/virtual_cuda.h"

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "cpd/base/plans.h"
#include "cpd/comm/engine/message_ops.h"
#include "cpd/comm/engine/staged.h"
#include "cpd/numeric/draws/streams.h"

namespace cpd {

struct VirtualSumsOnGpu::Layer {
  std::int64_t size = 0;
  std::shared_ptr<float> terms, group, across;
  std::shared_ptr<SegmentCounts> counts;  ///< of the contributions, and of the result
  std::int64_t staged_bytes = 0;
  std::vector<std::function<std::int64_t()>> bytes;  ///< of contributions
  struct Kept {
    VirtualCall call;
    bool counts = false;
    void* stream = nullptr;  ///< of the ranks' values
  };
  std::optional<Kept> kept;  ///< ranks that are to be folded

  [[nodiscard]] SegmentCounts* of_result() const { return counts.get() + 1; }
};

namespace {

template <class T>
std::shared_ptr<T> OnDevice(const std::shared_ptr<const Queue>& queue, std::int64_t n) {
  const auto free = [queue](T* memory) { queue->Release(MemoryKind::queued, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(T));
  return {static_cast<T*>(queue->Allocate(MemoryKind::queued, bytes)), free};
}

}  // namespace

VirtualSumsOnGpu::VirtualSumsOnGpu(const Reduction& reduction,
                                   const std::vector<std::int64_t>& sizes, const TensorView& first)
    : reduction_(reduction), queue_(std::make_shared<Queue>(first)) {
  const int across = reduction.Across(0).planes();
  const int group = reduction.Group(0, 0).planes();
  for (const std::int64_t size : sizes) {
    Layer& layer = layers_.emplace_back();
    layer.size = size;
    layer.terms = Floats(size);
    layer.across = Floats(size * across);
    if (reduction.grouped()) layer.group = Floats(size * group);
    layer.counts = OnDevice<SegmentCounts>(queue_, 2);
    queue_->Clear(layer.counts.get(), 2 * sizeof(SegmentCounts));
  }
}
VirtualSumsOnGpu::~VirtualSumsOnGpu() = default;

std::shared_ptr<float> VirtualSumsOnGpu::Floats(std::int64_t n) const {
  return OnDevice<float>(queue_, n);
}

float VirtualSumsOnGpu::Largest(const TensorView& x) const {
  queue_->Follow(x.stream);
  const float largest = MeasureRanges(*queue_, {&x, 1})[0].max_abs;
  float entering = largest;  // rounding keeps the order of magnitudes
  Unscale(0, reduction_.first_divisor(), 1, &largest, &entering);
  return entering;
}

float VirtualSumsOnGpu::Largest(const TensorView& x, const Codec& codec, const Piece& whole,
                                CodecState* state) const {
  if (state == nullptr) return Largest(x);
  const auto values = Entering(x);
  state->BeginOn(queue_, whole, values.get());
  const auto largest = codec.LargestOn(*queue_, *state);
  return largest ? *largest : Largest(x);
}

VirtualCall VirtualSumsOnGpu::CallOf(const Layer& layer, const Level& level, float* planes) const {
  VirtualCall call;
  call.size = layer.size;
  call.terms = layer.terms.get();
  call.plan = SumPlanOf(level);
  call.rounds = reduction_.rounds();
  call.count = level.terms;
  call.sum_stream = level.sum_key.stream;
  call.result_stream = level.result_key.stream;
  call.planes = planes;
  return call;
}

VirtualCall VirtualSumsOnGpu::AcrossCall(int layer, std::int64_t visit) const {
  const Layer& to = layers_[static_cast<std::size_t>(layer)];
  VirtualCall call = CallOf(to, reduction_.Across(layer), to.across.get());
  call.visit = visit;
  return call;
}

VirtualCall VirtualSumsOnGpu::TurnCall(int layer, const Turn& turn) const {
  if (!reduction_.grouped()) return AcrossCall(layer, turn.visit);
  const Layer& to = layers_[static_cast<std::size_t>(layer)];
  VirtualCall call = CallOf(to, reduction_.Group(layer, turn.unit), to.group.get());
  call.k = turn.member;
  return call;
}

void VirtualSumsOnGpu::Contribute(int layer, const TensorView& x, int shift, const Turn& turn,
                                  bool stays) {
  Layer& to = layers_[static_cast<std::size_t>(layer)];
  if (to.size == 0) return;
  const Reduce& spec = reduction_.spec();
  if (to.kept && to.kept->stream != x.stream) Fold(to);
  if (!to.kept) {
    to.kept = {TurnCall(layer, turn), turn.counts, x.stream};
    VirtualCall& call = to.kept->call;
    call.ranks = 0;
    call.casts = true;
    call.divisor = reduction_.first_divisor();
    call.shift = BoundedShift(shift);
    call.cast = PlanOf(spec.format, spec.rounding, {.seed = reduction_.seed()});
  }
  VirtualCall& call = to.kept->call;
  call.x[call.ranks] = static_cast<const float*>(x.data);
  call.cast_stream[call.ranks] =
      StreamOf(Purpose::wire, reduction_.step(), reduction_.number(layer), turn.rank);
  const bool is_full = ++call.ranks == kMostPassRanks || call.rounds.order == Order::ring;
  if (is_full || !stays) Fold(to);
}

void VirtualSumsOnGpu::Fold(Layer& layer) {
  auto kept = std::exchange(layer.kept, std::nullopt);
  queue_->Follow(kept->stream);
  if (kept->counts) kept->call.counts = layer.counts.get();
  queue_->fold_ranks(kept->call);
  queue_->Precede(kept->stream);
}

void VirtualSumsOnGpu::FoldKept() {
  for (Layer& layer : layers_) {
    if (layer.kept) Fold(layer);
  }
}

std::shared_ptr<const float> VirtualSumsOnGpu::Entering(const TensorView& x) const {
  queue_->Follow(x.stream);
  const float divisor = reduction_.first_divisor();
  if (divisor != 1) return Quotients(queue_, {&x, 1}, divisor)[0];
  return {std::shared_ptr<void>(), static_cast<const float*>(x.data)};
}

float VirtualSumsOnGpu::Measure(const TensorView& x, const Codec& codec, const Piece& whole,
                                CodecState* state) const {
  const auto values = Entering(x);
  if (state != nullptr) state->BeginOn(queue_, whole, values.get());
  return codec.MeasureOn(*queue_, whole, state, values.get());
}

void VirtualSumsOnGpu::Contribute(int layer, const TensorView& x, const Codec& codec,
                                  const Piece& whole, CodecState* state, const Turn& turn) {
  Layer& to = layers_[static_cast<std::size_t>(layer)];
  if (to.size == 0) return;
  const auto values = Entering(x);
  if (state != nullptr) state->BeginOn(queue_, whole, values.get());
  const bool counts_bytes = turn.counts && turn.counts_bytes && !codec.is_fixed();
  if (counts_bytes) to.bytes.push_back(codec.BytesOn(queue_, whole, state, values.get()));
  codec.RoundOn(*queue_, whole, state, values.get(), to.terms.get(),
                turn.counts ? to.counts.get() : nullptr);
  queue_->Precede(x.stream);
  TakeTerms(layer, turn);
}

void VirtualSumsOnGpu::EncodeResults(int layer, const Codec& codec, const Piece& whole,
                                     CodecState* state) {
  const Layer& from = layers_[static_cast<std::size_t>(layer)];
  float* const sums = from.across.get();
  if (from.size == 0) return;
  if (state != nullptr) state->BeginOn(queue_, whole, nullptr);
  codec.RoundOn(*queue_, whole, state, sums, sums);
}

void VirtualSumsOnGpu::TakeTerms(int layer, const Turn& turn) {
  VirtualCall call = TurnCall(layer, turn);
  call.x[0] = call.terms;
  queue_->fold_ranks(call);
}

void VirtualSumsOnGpu::Copy(int layer, void* to, const void* from) {
  Layer& copied = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t bytes = copied.size * static_cast<std::int64_t>(sizeof(float));
  if (bytes > 0) queue_->Copy(to, from, bytes);
  copied.staged_bytes += bytes;
}

std::shared_ptr<float> VirtualSumsOnGpu::OnHost(int layer) const {
  return PinnedValues(queue_, layers_[static_cast<std::size_t>(layer)].size);
}

const float* VirtualSumsOnGpu::Staged(int layer, const TensorView& x) {
  staged_ = OnHost(layer);
  queue_->Follow(x.stream);
  Copy(layer, staged_.get(), x.data);
  return staged_.get();
}

void VirtualSumsOnGpu::ContributeTerms(int layer, const float* terms, const Turn& turn) {
  const Layer& to = layers_[static_cast<std::size_t>(layer)];
  if (to.size == 0) return;
  Copy(layer, to.terms.get(), terms);
  TakeTerms(layer, turn);
}

std::shared_ptr<float> VirtualSumsOnGpu::Sums(int layer) {
  std::shared_ptr<float> sums = OnHost(layer);
  Copy(layer, sums.get(), layers_[static_cast<std::size_t>(layer)].across.get());
  return sums;
}

void VirtualSumsOnGpu::SetSums(int layer, const float* sums) {
  Copy(layer, layers_[static_cast<std::size_t>(layer)].across.get(), sums);
}

std::int64_t VirtualSumsOnGpu::staged_bytes(int layer) const {
  return layers_[static_cast<std::size_t>(layer)].staged_bytes;
}

void VirtualSumsOnGpu::EndGroup(const Turn& turn) {
  FoldKept();
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].size == 0) continue;
    VirtualCall call = AcrossCall(static_cast<int>(l), turn.visit);
    call.x[0] = layers_[l].group.get();
    queue_->fold_ranks(call);
  }
}

void VirtualSumsOnGpu::Result(int layer, int shift, float scale, const TensorView& out) {
  const Layer& from = layers_[static_cast<std::size_t>(layer)];
  if (from.size == 0) return;
  VirtualCall call = CallOf(from, reduction_.Across(layer), from.across.get());
  call.shift = BoundedShift(shift);
  call.divisor = reduction_.divisor();
  call.scale = scale;
  queue_->Follow(out.stream);
  queue_->Clear(from.of_result(), sizeof(SegmentCounts));
  call.out = static_cast<float*>(out.data);
  call.counts = from.of_result();
  queue_->finish_sums(call);
  queue_->Precede(out.stream);
}

VirtualSumsOnGpu::Counts VirtualSumsOnGpu::counts(int layer) const {
  const Layer& of = layers_[static_cast<std::size_t>(layer)];
  std::array<SegmentCounts, 2> counts;
  queue_->Copy(counts.data(), of.counts.get(), sizeof(counts));
  std::int64_t bytes = 0;
  for (const auto& count : of.bytes) bytes += count();
  return {LossesOf(counts[0]), static_cast<std::int64_t>(counts[1].non_finite), bytes};
}

}  // namespace cpd
