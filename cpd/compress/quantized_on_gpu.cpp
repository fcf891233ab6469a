// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/on_gpu.h"
#include "cpd/compress/quantized.h"

namespace cpd {

class Quantized::OnGpu final : public CodecOnGpu {
 public:
  explicit OnGpu(const Quantized& codec) : codec_(codec) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  void Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
              float divisor, float* y, std::int64_t before) const override {
    QuantizedCall call = CallOf(n, before);
    call.shift = shift;
    call.divisor = divisor;
    call.from = bytes;
    call.y = y;
    call.damaged =
        queue.PlaceOf({"value ", " of a message: its bucket's scale is negative or no number"});
    queue.decode_quantized(call);
  }

 private:
  class Layer;
  [[nodiscard]] QuantizedCall CallOf(std::int64_t n, std::int64_t before) const {
    QuantizedCall call;
    call.scaled.plan = codec_.plan_;
    call.scaled.route = route_of(codec_.plan_);
    call.inverted = codec_.name_ == Name::fp8_rows;
    call.n = n;
    call.before = before;
    call.bucket = codec_.bucket_;
    call.block = codec_.block();
    return call;
  }

  const Quantized& codec_;
};

class Quantized::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const OnGpu& codec, SharedQueue queue, const Piece& layer, const float* x)
      : codec_(codec), queue_(std::move(queue)), begin_(layer.begin), x_(x) {
    QuantizedCall call = codec.CallOf(layer.n, 0);
    const std::int64_t buckets = (layer.n + call.bucket - 1) / call.bucket;
    scales_ = QueuedValues(queue_, buckets);
    factors_ = QueuedValues(queue_, buckets);
    call.shift = layer.shift;
    call.x = x;
    call.scale = scales_.get();
    call.factor = factors_.get();
    queue_->bucket_scales(call);
  }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    QuantizedCall call = CallOf(layer);
    call.x = x_;
    call.y = y;
    call.counts = counts;
    queue_->round_quantized(call);
  }
  void Encode(const Piece& piece, std::uint8_t* to) const override {
    QuantizedCall call = CallOf(piece);
    call.x = x_ + (piece.begin - begin_);
    call.to = to;
    queue_->encode_quantized(call);
  }

 private:
  [[nodiscard]] QuantizedCall CallOf(const Piece& piece) const {
    const std::int64_t bucket = codec_.codec_.bucket_;
    QuantizedCall call = codec_.CallOf(piece.n, piece.begin % bucket);
    call.begin = piece.begin;
    call.scaled.plan.element.seed = piece.key.seed;
    call.stream = piece.key.stream;
    call.shift = piece.shift;
    const std::int64_t first = piece.begin / bucket - begin_ / bucket;
    call.scale = scales_.get() + first;
    call.factor = factors_.get() + first;
    return call;
  }

  const OnGpu& codec_;
  SharedQueue queue_;
  std::int64_t begin_;
  const float* x_;
  std::shared_ptr<float> scales_, factors_;
};

std::unique_ptr<LayerOnGpu> Quantized::OnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                                    const StateOnGpu& /*state*/,
                                                    const float* x) const {
  return std::make_unique<Layer>(*this, queue, layer, x);
}

std::unique_ptr<const CodecOnGpu> Quantized::MakeOnGpu() const {
  const bool has_kernels =
      rounding_.mode == Rounding::nearest_even || rounding_.mode == Rounding::stochastic;
  return has_kernels ? std::make_unique<OnGpu>(*this) : nullptr;
}

}  // namespace cpd
