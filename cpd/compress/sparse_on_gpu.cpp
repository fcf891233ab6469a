// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cpd/base/plans.h"
#include "cpd/compress/sparse.h"

namespace cpd {

class Sparse::OnGpu final : public CodecOnGpu {
 public:
  explicit OnGpu(const Format& format) : cast_(PlanOf(format)) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  [[nodiscard]] bool encodes() const override { return false; }

 private:
  class Layer;
  RoundPlan cast_;
};

class Sparse::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const RoundPlan& cast, SharedQueue queue, const float* x) : queue_(std::move(queue)) {
    call_.cast = cast;
    call_.x[0] = x;
  }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    if (layer.n == 0) return;
    VirtualCall call = call_;
    call.size = layer.n;
    call.shift = layer.shift;
    call.terms = y;
    call.counts = counts;
    queue_->cast_terms(call);
  }

 private:
  SharedQueue queue_;
  VirtualCall call_;
};

std::unique_ptr<LayerOnGpu> Sparse::OnGpu::Begin(const SharedQueue& queue, const Piece& /*layer*/,
                                                 const StateOnGpu& /*state*/,
                                                 const float* x) const {
  return std::make_unique<Layer>(cast_, queue, x);
}

std::unique_ptr<const CodecOnGpu> Sparse::MakeOnGpu() const {
  return std::make_unique<OnGpu>(values_.format());
}

}  // namespace cpd
