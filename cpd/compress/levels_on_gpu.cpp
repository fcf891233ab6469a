// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/levels_on_gpu.h"

#include <algorithm>

namespace cpd {
namespace {

constexpr std::int64_t kSplit = 2048;  // values of a layer whose largest is found alone

/// The norm of all values; waits. A largest magnitude is found of parts, in any order.
float NormOf(const SharedQueue& queue, NormCall call, const float* x) {
  if (call.n == 0) return 0;
  const bool sums = call.norm == LevelNorm::euclidean || call.clip != 0;
  std::shared_ptr<float> norms;
  for (bool first = true; first || call.n > 1; first = false) {
    call.bucket = sums ? call.n : std::min(call.n, kSplit);
    const std::int64_t parts = (call.n + call.bucket - 1) / call.bucket;
    const std::shared_ptr<float> found = QueuedValues(queue, parts);
    call.x = x;
    call.norms = found.get();
    queue->level_norms(call);
    norms = found;
    x = norms.get();
    call.n = parts;
    call.shift = 0;
  }
  float norm = 0;
  queue->Copy(&norm, norms.get(), sizeof(norm));
  return norm;
}

}  // namespace

class LevelsOnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const LevelsOnGpu& codec, SharedQueue queue, const Piece& layer, const float* x)
      : codec_(codec), queue_(std::move(queue)), layer_(layer), x_(x) {
    const std::int64_t bucket = codec.blocks_.options().bucket;
    if (bucket > 0 && layer.n > 0) {
      NormCall call = Norms();
      call.bucket = bucket;
      norms_ = QueuedValues(queue_, (layer.n + bucket - 1) / bucket);
      call.x = x;
      call.norms = norms_.get();
      queue_->level_norms(call);
    } else if (codec.whole_ == Whole::layer) {
      norm_ = Measure();
    }
  }

  [[nodiscard]] float Measure() const override { return NormOf(queue_, Norms(), x_); }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    LevelCall call = CallOf(layer);
    call.x = x_;
    call.y = y;
    call.counts = counts;
    queue_->round_levels(call);
  }
  void Encode(const Piece& piece, std::uint8_t* to) const override {
    LevelCall call = CallOf(piece);
    call.x = x_ + (piece.begin - layer_.begin);
    call.to = to;
    queue_->encode_levels(call);
  }

 private:
  [[nodiscard]] NormCall Norms() const {
    const LevelBlocks::Options& options = codec_.blocks_.options();
    NormCall call;
    call.norm = options.norm;
    call.clip = options.clip;
    call.n = layer_.n;
    call.shift = layer_.shift;
    return call;
  }
  [[nodiscard]] LevelCall CallOf(const Piece& piece) const {
    LevelCall call = codec_.blocks_.CallOf(piece.n, piece.begin);
    call.plan.seed = piece.key.seed;
    call.plan.stream = piece.key.stream;
    call.begin = piece.begin;
    call.shift = piece.shift;
    call.norm = codec_.whole_ == Whole::scale ? piece.scale : norm_;
    if (norms_ != nullptr) {
      call.norms =
          norms_.get() + (piece.begin / call.plan.bucket - layer_.begin / call.plan.bucket);
    }
    return call;
  }

  const LevelsOnGpu& codec_;
  SharedQueue queue_;
  Piece layer_;
  const float* x_;
  std::shared_ptr<float> norms_;
  float norm_ = 1;
};

std::unique_ptr<LayerOnGpu> LevelsOnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                               const StateOnGpu& /*state*/, const float* x) const {
  return std::make_unique<Layer>(*this, queue, layer, x);
}

void LevelsOnGpu::Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
                         float divisor, float* y, std::int64_t before) const {
  LevelCall call = blocks_.CallOf(n, before);
  call.shift = shift;
  call.divisor = divisor;
  call.from = bytes;
  call.y = y;
  call.damaged =
      queue.PlaceOf({"value ", " of a message: its bucket's norm is negative or infinite"});
  queue.decode_levels(call);
}

}  // namespace cpd
