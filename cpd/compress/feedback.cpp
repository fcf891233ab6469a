// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/feedback.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cpd/compress/codecs.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kCached = 8192;  // values whose sums, codes and errors fill L1 and L2

FeedbackCall CallOf(const Piece& piece, const float* x) {
  FeedbackCall call;
  call.n = piece.n;
  call.shift = piece.shift;
  call.x = x;
  return call;
}

}  // namespace

/// The residual, and the state of the inner codec if it has one. BeginOn passes the values v = x *
/// 2^shift + residual of the whole layer to the inner state, and stores them until Free.
struct Feedback::State final : Residual {
  State(const Codec& codec, std::int64_t size) : Residual(size), inner(codec.MakeState(size)) {}

  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override {
    Residual::BeginOn(queue, layer, x);
    v = nullptr;
    if (inner == nullptr) return;
    if (x != nullptr) {
      v = QueuedValues(queue, layer.n);
      FeedbackCall call = CallOf(layer, x);
      call.kept = kept(layer.begin);
      call.v = v.get();
      if (layer.n > 0) queue->add_residual(call);
    }
    inner->BeginOn(queue, Unshifted(layer), v.get());
  }
  void Commit() override {
    Residual::Commit();
    if (inner == nullptr) return;
    inner->Commit();
    Free();
  }
  void Free() override {
    if (inner != nullptr) inner->Free();
    v = nullptr;
    Residual::Free();
  }
  void SetGradient(float rms) override {
    if (inner != nullptr) inner->SetGradient(rms);
  }
  [[nodiscard]] std::optional<int> ChosenBits() const override {
    return inner == nullptr ? std::nullopt : inner->ChosenBits();
  }

  std::unique_ptr<CodecState> inner;
  std::shared_ptr<float> v;
};

/// The values v of a piece (a range of a layer's values): x with the residual added. If a bucket is
/// only partly in the piece, v also has the other values of that bucket.
class Feedback::Compensated {
 public:
  Compensated(const Queue& queue, const Codec& inner, const Piece& piece, CodecState* state,
              const float* x)
      : queue_(queue), state_(dynamic_cast<State&>(*state)), call_(CallOf(piece, x)) {
    if (state_.v != nullptr) {
      call_.v = state_.v.get() + piece.begin;
      return;
    }
    const ValueRange whole = BucketsAround(piece, inner.bucket());
    const std::int64_t ahead = piece.begin - whole.begin;
    own_.emplace(queue, whole.size());
    FeedbackCall call = call_;
    call.n = whole.size();
    call.x = x - ahead;
    call.kept = state_.kept(whole.begin);
    call.v = own_->data();
    queue.add_residual(call);
    call_.v = own_->data() + ahead;
  }
  [[nodiscard]] const float* v() const { return call_.v; }
  [[nodiscard]] CodecState* inner() const { return state_.inner.get(); }

  /// Stores the errors of the encoded values of a piece (a range of a layer's values) as the next
  /// residual.
  void TakeErrors(const Piece& piece, const float* decoded, SegmentCounts* counts) {
    call_.decoded = decoded;
    call_.next = state_.next(piece.begin);
    call_.counts = counts;
    queue_.take_errors(call_);
  }

 private:
  const Queue& queue_;
  State& state_;
  FeedbackCall call_;
  std::optional<QueuedArray<float>> own_;
};

Piece Feedback::Unshifted(Piece piece) {
  piece.shift = 0;
  return piece;
}

Feedback::Feedback(SharedCodec inner) : inner_(std::move(inner)) {
  const auto refuse = [&](const std::string& why) {
    throw Error("feedback takes no codec that " + why + ", got '" + inner_->name() + "'");
  };
  if (inner_->measured() == Measured::shared) refuse("takes a scale which ranks share");
  const auto state = inner_->MakeState(1);
  if (state != nullptr && !state->Kept().empty()) refuse("feeds its errors back by itself");
}

float Feedback::MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                          const float* x) const {
  const Compensated sums(queue, *inner_, layer, state, x);
  return inner_->MeasureOn(queue, Unshifted(layer), sums.inner(), sums.v());
}

std::int64_t Feedback::EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                                const float* x, std::uint8_t* to) const {
  // If messages have a fixed size and inner has no state, a few blocks are encoded at a time. Their
  // values stay in the caches while residuals are added, values encoded, and errors computed.
  const bool apart = inner_->is_fixed() && dynamic_cast<const State&>(*state).inner == nullptr;
  const std::int64_t step =
      apart ? block() * std::max<std::int64_t>(1, kCached / block()) : piece.n;
  const std::uint8_t* const begin = to;
  std::optional<QueuedArray<float>> decoded;
  ForParts(queue, piece, bucket(), step, [&](const Piece& part, std::int64_t i) {
    if (!decoded) decoded.emplace(queue, part.n);  // the first is the longest
    Compensated sums(queue, *inner_, part, state, x + i);
    const std::int64_t bytes = inner_->EncodeOn(queue, Unshifted(part), sums.inner(), sums.v(), to);
    inner_->DecodeOn(queue, {to, static_cast<std::size_t>(bytes)}, part.n, 0, 1, decoded->data(),
                     part.begin % bucket());
    sums.TakeErrors(part, decoded->data(), nullptr);
    to += bytes;
  });
  return to - begin;
}

void Feedback::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                        int shift, float divisor, float* y, std::int64_t before) const {
  inner_->DecodeOn(queue, bytes, n, shift, divisor, y, before);
}

void Feedback::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                       float* y, SegmentCounts* counts) const {
  if (piece.n == 0) return;
  Compensated sums(queue, *inner_, piece, state, x);
  inner_->RoundOn(queue, Unshifted(piece), sums.inner(), sums.v(), y);
  sums.TakeErrors(piece, y, counts);
}

std::function<std::int64_t()> Feedback::BytesOn(const SharedQueue& queue, const Piece& layer,
                                                CodecState* state, const float* x) const {
  const Compensated sums(*queue, *inner_, layer, state, x);
  return inner_->BytesOn(queue, Unshifted(layer), sums.inner(), sums.v());
}

std::unique_ptr<CodecState> Feedback::MakeState(std::int64_t size) const {
  return std::make_unique<State>(*inner_, size);
}

SharedCodec Feedback::ForRows(std::int64_t row) const {
  SharedCodec inner = inner_->ForRows(row);
  return inner == nullptr ? nullptr : std::make_shared<Feedback>(std::move(inner));
}

SharedCodec Feedback::ForSums(const Format& format) const { return inner_->ForSums(format); }

SharedCodec Feedback::ForResults(const Format& format, int world) const {
  SharedCodec inner = inner_->ForResults(format, world);
  return inner == nullptr ? nullptr : std::make_shared<Feedback>(std::move(inner));
}

SharedCodec Feedback::Make(CodecWords& words, const RoundingOptions& rounding) {
  if (words.IsEmpty()) {
    throw Error("feedback takes a codec, as in 'feedback int4 32 scale=fp32'");
  }
  return std::make_shared<Feedback>(MakeInner(words, "", rounding));
}

}  // namespace cpd
