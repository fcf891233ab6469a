// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <utility>

#include "cpd/compress/feedback.h"
#include "cpd/compress/residual.h"

namespace cpd {

/// What inner does there, given the layer's values with their residual added.
class Feedback::OnGpu final : public CodecOnGpu {
 public:
  explicit OnGpu(const Codec& inner) : inner_(inner) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  [[nodiscard]] bool encodes() const override { return inner_.on_gpu()->encodes(); }
  [[nodiscard]] bool counts_bytes() const override { return inner_.on_gpu()->counts_bytes(); }
  void Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
              float divisor, float* y, std::int64_t before) const override {
    inner_.on_gpu()->Decode(queue, bytes, n, shift, divisor, y, before);
  }

 private:
  class Layer;
  const Codec& inner_;
};

class Feedback::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const Codec& inner, SharedQueue queue, const Piece& layer, const StateOnGpu& state,
        const float* x)
      : inner_(inner),
        queue_(std::move(queue)),
        begin_(layer.begin),
        x_(x),
        residual_(dynamic_cast<Residual&>(*state.state).OnGpu(queue_, layer.begin - state.begin)),
        v_(QueuedValues(queue_, layer.n)) {
    FeedbackCall call = CallOf(layer);
    call.kept = residual_->kept();
    queue_->add_residual(call);
    layer_ = inner.on_gpu()->Begin(queue_, Unshifted(layer), {}, v_.get());
  }

  [[nodiscard]] float Measure() const override { return layer_->Measure(); }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    layer_->Round(Unshifted(layer), y, nullptr);
    TakeErrors(CallOf(layer), y, residual_->next(), counts);
  }
  [[nodiscard]] std::function<std::int64_t()> CountBytes(const Piece& layer) const override {
    return layer_->CountBytes(Unshifted(layer));
  }
  void Encode(const Piece& piece, std::uint8_t* to) const override {
    layer_->Encode(Unshifted(piece), to);
    const std::shared_ptr<float> decoded = QueuedValues(queue_, piece.n);
    inner_.on_gpu()->Decode(*queue_, to, piece.n, 0, 1, decoded.get(),
                            piece.begin % inner_.bucket());
    TakeErrors(CallOf(piece), decoded.get(), residual_->next() + (piece.begin - begin_), nullptr);
  }

 private:
  void TakeErrors(FeedbackCall call, const float* decoded, float* next,
                  SegmentCounts* counts) const {
    call.decoded = decoded;
    call.next = next;
    call.counts = counts;
    queue_->take_errors(call);
  }
  [[nodiscard]] FeedbackCall CallOf(const Piece& piece) const {
    FeedbackCall call;
    call.n = piece.n;
    call.shift = piece.shift;
    call.x = x_ + (piece.begin - begin_);
    call.v = v_.get() + (piece.begin - begin_);
    return call;
  }

  const Codec& inner_;
  SharedQueue queue_;
  std::int64_t begin_;
  const float* x_;
  std::unique_ptr<const ResidualOnGpu> residual_;
  std::shared_ptr<float> v_;
  std::unique_ptr<LayerOnGpu> layer_;  // inner's, of v_
};

std::unique_ptr<LayerOnGpu> Feedback::OnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                                   const StateOnGpu& state, const float* x) const {
  return std::make_unique<Layer>(inner_, queue, layer, state, x);
}

std::unique_ptr<const CodecOnGpu> Feedback::MakeOnGpu() const {
  return inner_->on_gpu() == nullptr ? nullptr : std::make_unique<OnGpu>(*inner_);
}

}  // namespace cpd
