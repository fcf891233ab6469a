// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <utility>

#include "cpd/base/plans.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/top_k.h"
#include "kernels/cuda/code_tile.h"

namespace cpd {
namespace {

/// The tiles of a span, a power of two up to a block's: few, while that makes no more spans than a
/// GPU runs at once.
std::int32_t SpanOf(std::int64_t n, std::int64_t block) {
  constexpr std::int64_t kSpans = 1024;
  std::int64_t span = 1;
  while (span < block / cuda::kTile && cuda::tiles_of(n) > kSpans * span) span *= 2;
  return static_cast<std::int32_t>(span);
}

}  // namespace

class TopK::OnGpu final : public CodecOnGpu {
 public:
  OnGpu(const TopK& codec, const Packed& values)
      : codec_(codec), cast_(PlanOf(values.format(), values.rounding())) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  [[nodiscard]] bool encodes() const override { return false; }
  [[nodiscard]] bool counts_bytes() const override { return true; }

 private:
  class Layer;
  const TopK& codec_;
  RoundPlan cast_;
};

class TopK::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const OnGpu& codec, SharedQueue queue, const Piece& layer, const StateOnGpu& state,
        const float* x)
      : queue_(std::move(queue)) {
    call_.n = layer.n;
    call_.k = codec.codec_.Count(layer.n);
    call_.x = x;
    call_.cast = codec.cast_;
    call_.block = codec.codec_.block();
    call_.span = SpanOf(layer.n, call_.block);
    if (codec.codec_.feeds_back_) {
      residual_ = dynamic_cast<Residual&>(*state.state).OnGpu(queue_, layer.begin - state.begin);
      sum_ = QueuedValues(queue_, layer.n);
      call_.kept = residual_->kept();
      call_.sum = sum_.get();
      call_.next = residual_->next();
    }
    if (layer.n == 0) return;
    const std::int64_t spans = (cuda::tiles_of(layer.n) + call_.span - 1) / call_.span + 1;
    const std::int64_t bytes =
        std::int64_t{sizeof(cuda::TopKSearch)} + spans * std::int64_t{sizeof(cuda::TopKSpan)};
    memory_ = QueuedValues(queue_, bytes / std::int64_t{sizeof(float)});
    call_.search = reinterpret_cast<cuda::TopKSearch*>(memory_.get());
    call_.spans = reinterpret_cast<cuda::TopKSpan*>(call_.search + 1);
    queue_->Clear(memory_.get(), bytes);
    queue_->SelectTopK(call_);
  }

  [[nodiscard]] std::optional<float> Largest() const override {
    std::uint32_t largest = 0;
    if (call_.n > 0) queue_->Copy(&largest, &call_.search->largest, sizeof(largest));
    return std::bit_cast<float>(largest);
  }

  void Round(const Piece& layer, float* y, cuda::SegmentCounts* counts) const override {
    if (layer.n > 0) queue_->RoundTopK(CallOf(layer), y, counts);
  }
  void CountBytes(const Piece& layer, cuda::SegmentCounts* counts) const override {
    if (layer.n > 0) queue_->CountTopKBytes(CallOf(layer), counts);
  }

 private:
  [[nodiscard]] cuda::TopKCall CallOf(const Piece& layer) const {
    cuda::TopKCall call = call_;
    call.shift = layer.shift;
    call.stream = layer.stream;
    return call;
  }

  SharedQueue queue_;
  cuda::TopKCall call_;
  std::unique_ptr<const ResidualOnGpu> residual_;
  std::shared_ptr<float> sum_, memory_;
};

std::unique_ptr<LayerOnGpu> TopK::OnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                               const StateOnGpu& state, const float* x) const {
  return std::make_unique<Layer>(*this, queue, layer, state, x);
}

std::unique_ptr<const CodecOnGpu> TopK::MakeOnGpu() const {
  const auto* values = dynamic_cast<const Packed*>(inner_.get());
  const bool has_kernels = values != nullptr && values->has_nan();
  return has_kernels ? std::make_unique<OnGpu>(*this, *values) : nullptr;
}

}  // namespace cpd
