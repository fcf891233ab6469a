// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/on_gpu.h"
#include "cpd/compress/one_bit.h"
#include "cpd/compress/residual.h"

namespace cpd {

class OneBit::OnGpu final : public CodecOnGpu {
 public:
  explicit OnGpu(const OneBit& codec) : codec_(codec) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  void Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
              float divisor, float* y, std::int64_t before) const override {
    OneBitCall call = CallOf(n, before);
    call.shift = shift;
    call.divisor = divisor;
    call.from = bytes;
    call.y = y;
    queue.decode_one_bit(call);
  }

 private:
  class Layer;
  [[nodiscard]] OneBitCall CallOf(std::int64_t n, std::int64_t before) const {
    OneBitCall call;
    call.n = n;
    call.before = before;
    call.bucket = codec_.bucket_;
    call.block = codec_.block();
    call.words = codec_.columns_;
    return call;
  }

  const OneBit& codec_;
};

class OneBit::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const OnGpu& codec, SharedQueue queue, const Piece& layer, const StateOnGpu& state,
        const float* x)
      : codec_(codec), queue_(std::move(queue)), begin_(layer.begin), x_(x) {
    residual_ = dynamic_cast<Residual&>(*state.state).OnGpu(queue_, layer.begin - state.begin);
    const std::int64_t bucket = codec.codec_.bucket_;
    means_ = QueuedValues(queue_, 2 * ((layer.n + bucket - 1) / bucket));
    OneBitCall call = codec.CallOf(layer.n, 0);
    call.shift = layer.shift;
    call.kept = residual_->kept();
    call.x = x;
    call.means = means_.get();
    queue_->one_bit_means(call);
  }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    OneBitCall call = CallOf(layer);
    call.x = x_;
    call.y = y;
    call.counts = counts;
    queue_->round_one_bit(call);
  }
  void Encode(const Piece& piece, std::uint8_t* to) const override {
    OneBitCall call = CallOf(piece);
    call.x = x_ + (piece.begin - begin_);
    call.to = to;
    queue_->encode_one_bit(call);
  }

 private:
  [[nodiscard]] OneBitCall CallOf(const Piece& piece) const {
    const std::int64_t bucket = codec_.codec_.bucket_;
    OneBitCall call = codec_.CallOf(piece.n, piece.begin % bucket);
    call.shift = piece.shift;
    call.means = means_.get() + 2 * (piece.begin / bucket - begin_ / bucket);
    call.kept = residual_->kept() + (piece.begin - begin_);
    call.next = residual_->next() + (piece.begin - begin_);
    return call;
  }

  const OnGpu& codec_;
  SharedQueue queue_;
  std::int64_t begin_;
  const float* x_;
  std::unique_ptr<const ResidualOnGpu> residual_;
  std::shared_ptr<float> means_;
};

std::unique_ptr<LayerOnGpu> OneBit::OnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                                 const StateOnGpu& state, const float* x) const {
  return std::make_unique<Layer>(*this, queue, layer, state, x);
}

std::unique_ptr<const CodecOnGpu> OneBit::MakeOnGpu() const {
  return std::make_unique<OnGpu>(*this);
}

}  // namespace cpd
