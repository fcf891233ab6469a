// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cpd/base/plans.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/top_k.h"
#include "cpd/numeric/scaled/gap_codes.h"

namespace cpd {
namespace {

template <class T>
std::int64_t FloatsOf(std::int64_t n) {
  static_assert(sizeof(T) % sizeof(float) == 0);
  return n * std::int64_t{sizeof(T) / sizeof(float)};
}

/// The tiles of a span, a power of two up to a block's: few, while that makes no more spans than a
/// GPU runs at once.
std::int32_t SpanOf(std::int64_t n, std::int64_t block) {
  constexpr std::int64_t kSpans = 1024;
  std::int64_t span = 1;
  while (span < block / kCodeTile && tiles_of(n) > kSpans * span) span *= 2;
  return static_cast<std::int32_t>(span);
}

/// The bytes of messages that keep so many values, which `inner` encodes.
std::int64_t BytesOf(const Codec& inner, const std::vector<TopKPlaces>& places) {
  std::int64_t bytes = 0;
  std::int64_t rank = 0;
  for (const auto& [kept, bits] : places) {
    bytes += number_bytes(kept) + (std::int64_t{bits} + 7) / 8;
    if (kept == 0) continue;
    const std::int64_t before = rank % inner.bucket();
    if (inner.bucket() > 1) bytes += number_bytes(before);
    bytes += inner.MostBytes(kept, before);
    rank += kept;
  }
  return bytes;
}

}  // namespace

class TopK::OnGpu final : public CodecOnGpu {
 public:
  explicit OnGpu(const TopK& codec) : codec_(codec) {
    const auto* values = dynamic_cast<const Packed*>(codec.inner_.get());
    if (values != nullptr) cast_ = PlanOf(values->format(), values->rounding());
  }

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  [[nodiscard]] bool encodes() const override { return false; }
  [[nodiscard]] bool counts_bytes() const override { return true; }

 private:
  class Layer;
  const TopK& codec_;
  std::optional<RoundPlan> cast_;  // of a packed format; none: the inner codec's kernels round
};

class TopK::OnGpu::Layer final : public LayerOnGpu {
 public:
  Layer(const OnGpu& codec, SharedQueue queue, const Piece& layer, const StateOnGpu& state,
        const float* x)
      : codec_(codec.codec_), queue_(std::move(queue)) {
    call_.n = layer.n;
    call_.k = codec_.Count(layer.n);
    call_.x = x;
    call_.block = codec_.block();
    call_.span = SpanOf(layer.n, call_.block);
    if (codec.cast_) call_.cast = *codec.cast_;
    if (codec_.feeds_back_) {
      residual_ = dynamic_cast<Residual&>(*state.state).OnGpu(queue_, layer.begin - state.begin);
      sum_ = QueuedValues(queue_, layer.n);
      call_.kept = residual_->kept();
      call_.sum = sum_.get();
      call_.next = residual_->next();
    }
    if (layer.n > 0) Select();
    if (!codec.cast_) BeginInner(layer);
  }

  [[nodiscard]] float Measure() const override { return inner_ == nullptr ? 0 : inner_->Measure(); }
  [[nodiscard]] std::optional<float> Largest() const override {
    return std::bit_cast<float>(Read(&TopKSearch::largest));
  }

  void Round(const Piece& layer, float* y, SegmentCounts* counts) const override {
    if (layer.n == 0) return;
    TopKCall call = call_;
    call.shift = layer.shift;
    call.cast.seed = layer.key.seed;
    call.stream = layer.key.stream;
    std::shared_ptr<float> terms;
    if (inner_ != nullptr) {
      const Piece values = InnerOf(layer);
      terms = QueuedValues(queue_, values.n);
      inner_->Round(values, terms.get(), nullptr);
      call.terms = terms.get();
      if (codec_.measured() == Measured::shared) call.unit = layer.scale;
    }
    call.y = y;
    call.counts = counts;
    queue_->round_top_k(call);
  }

  [[nodiscard]] std::function<std::int64_t()> CountBytes(const Piece& layer) const override {
    const std::int64_t blocks = (layer.n + call_.block - 1) / call_.block;
    const auto memory = QueuedValues(queue_, FloatsOf<TopKPlaces>(blocks));
    if (blocks > 0) {
      TopKCall call = call_;
      call.places = reinterpret_cast<TopKPlaces*>(memory.get());
      queue_->count_top_k(call);
    }
    return [queue = queue_, memory, blocks, inner = codec_.inner_] {
      std::vector<TopKPlaces> places(static_cast<std::size_t>(blocks));
      const auto bytes = static_cast<std::int64_t>(places.size() * sizeof(TopKPlaces));
      if (blocks > 0) queue->Copy(places.data(), memory.get(), bytes);
      return BytesOf(*inner, places);
    };
  }

 private:
  void Select() {
    const std::int64_t spans = (tiles_of(call_.n) + call_.span - 1) / call_.span + 1;
    const std::int64_t floats = FloatsOf<TopKSearch>(1) + FloatsOf<TopKSpan>(spans);
    memory_ = QueuedValues(queue_, floats);
    call_.search = reinterpret_cast<TopKSearch*>(memory_.get());
    call_.spans = reinterpret_cast<TopKSpan*>(call_.search + 1);
    queue_->Clear(memory_.get(), floats * std::int64_t{sizeof(float)});
    queue_->select_top_k(call_);
  }

  /// A number of the search; waits. 0 for a layer without values.
  template <class T>
  [[nodiscard]] T Read(T TopKSearch::* number) const {
    T found{};
    if (call_.n > 0) queue_->Copy(&found, &(call_.search->*number), sizeof(found));
    return found;
  }

  /// Begins the inner codec with the values that are kept; waits for how many they are.
  void BeginInner(const Piece& layer) {
    kept_ = Read(&TopKSearch::kept);
    values_ = QueuedValues(queue_, kept_);
    call_.gathered = values_.get();
    if (kept_ > 0) queue_->gather_top_k(call_);
    inner_ = codec_.inner_->on_gpu()->Begin(queue_, InnerOf(layer), {}, values_.get());
  }
  [[nodiscard]] Piece InnerOf(const Piece& layer) const { return codec_.InnerOf(layer, kept_); }

  const TopK& codec_;
  SharedQueue queue_;
  TopKCall call_;
  std::unique_ptr<const ResidualOnGpu> residual_;
  std::shared_ptr<float> sum_, memory_;
  std::int64_t kept_ = 0;
  std::shared_ptr<float> values_;
  std::unique_ptr<LayerOnGpu> inner_;  // of values_; null where the cast rounds
};

std::unique_ptr<LayerOnGpu> TopK::OnGpu::Begin(const SharedQueue& queue, const Piece& layer,
                                               const StateOnGpu& state, const float* x) const {
  return std::make_unique<Layer>(*this, queue, layer, state, x);
}

std::unique_ptr<const CodecOnGpu> TopK::MakeOnGpu() const {
  const bool rounds = dynamic_cast<const Packed*>(inner_.get()) != nullptr ||
                      (inner_->on_gpu() != nullptr && inner_->is_fixed());
  return rounds && inner_->has_nan() ? std::make_unique<OnGpu>(*this) : nullptr;
}

}  // namespace cpd
