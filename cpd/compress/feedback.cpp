// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/feedback.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Values = std::unique_ptr<float[]>;

constexpr std::int64_t kCached = 8192;  // values whose sums, codes and errors fill L1 and L2

Values MakeValues(std::int64_t n) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
}

void AddEach(std::int64_t n, const float* x, const float* y, float* sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

/// Writes errors[i] = v[i] - decoded[i], or 0 where that is not finite.
void TakeErrors(std::int64_t n, const float* v, const float* decoded, float* errors) {
  constexpr std::uint32_t kInfinity = 0x7F800000;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto error = std::bit_cast<std::uint32_t>(v[i] - decoded[i]);
    errors[i] = std::bit_cast<float>((error & kInfinity) == kInfinity ? 0 : error);
  }
}

/// Writes v[i] = x[i] * 2^shift + residual[i].
void Add(int shift, std::int64_t n, const float* x, const float* residual, float* v) {
  if (shift != 0) {
    Unscale(shift, 1, n, x, v);
    x = v;
  }
  Guarded([&] { AddEach(n, x, residual, v); });
}

}  // namespace

/// The residual and inner's state. Where inner has one, it begins with the whole layer's v, which
/// is kept until Commit.
struct Feedback::State final : Residual {
  State(const Codec& codec, std::int64_t size) : Residual(size), inner(codec.MakeState(size)) {}

  void Begin(const Piece& layer, const float* x) override {
    Residual::Begin(layer, x);
    if (inner == nullptr) return;
    if (x != nullptr) {
      v.resize(static_cast<std::size_t>(layer.n));
      Add(layer.shift, layer.n, x, kept(0), v.data());
    }
    inner->Begin(Unshifted(layer), x == nullptr ? nullptr : v.data());
  }
  void Commit() override {
    Residual::Commit();
    if (inner == nullptr) return;
    inner->Commit();
    std::vector<float>().swap(v);
  }
  void SetGradient(float rms) override {
    if (inner != nullptr) inner->SetGradient(rms);
  }
  [[nodiscard]] std::optional<int> ChosenBits() const override {
    return inner == nullptr ? std::nullopt : inner->ChosenBits();
  }

  std::unique_ptr<CodecState> inner;
  std::vector<float> v;
};

/// A piece's values with the residual added, v, and those around it of the buckets that it cuts.
class Feedback::Compensated {
 public:
  Compensated(const Codec& inner, const Piece& piece, CodecState* state, const float* x)
      : state_(dynamic_cast<State&>(*state)) {
    if (!state_.v.empty()) {
      v_ = state_.v.data() + piece.begin;
      return;
    }
    const ValueRange whole = BucketsAround(piece, inner.bucket());
    const std::int64_t ahead = piece.begin - whole.begin;
    own_ = MakeValues(whole.size());
    Add(piece.shift, whole.size(), x - ahead, state_.kept(whole.begin), own_.get());
    v_ = own_.get() + ahead;
  }
  [[nodiscard]] const float* v() const { return v_; }
  [[nodiscard]] CodecState* inner() const { return state_.inner.get(); }

  /// Records the errors of the piece's values.
  void TakeDown(const Piece& piece, const float* decoded) const {
    Guarded([&] { TakeErrors(piece.n, v_, decoded, state_.next(piece.begin)); });
  }

 private:
  State& state_;
  Values own_;
  const float* v_ = nullptr;
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

float Feedback::Measure(const Piece& layer, CodecState* state, const float* x) const {
  const Compensated sums(*inner_, layer, state, x);
  return inner_->Measure(Unshifted(layer), sums.inner(), sums.v());
}

std::int64_t Feedback::Encode(const Piece& piece, CodecState* state, const float* x,
                              std::uint8_t* to) const {
  // A fixed codec's blocks can be encoded one by one where the buckets that they cut are known
  // whole: each then stays in the caches from its sums to its errors.
  const bool is_whole = piece.size > 0 || piece.begin % bucket() == 0;
  const bool apart =
      inner_->is_fixed() && is_whole && dynamic_cast<const State&>(*state).inner == nullptr;
  const std::int64_t step =
      apart ? block() * std::max<std::int64_t>(1, kCached / block()) : piece.n;
  const std::uint8_t* const begin = to;
  for (std::int64_t i = 0; i < piece.n; i += step) {
    Piece part = piece;
    part.begin += i;
    part.n = std::min(step, piece.n - i);
    if (part.random != nullptr) part.random += i;
    to += EncodePart(part, state, x + i, to);
  }
  return to - begin;
}

std::int64_t Feedback::EncodePart(const Piece& piece, CodecState* state, const float* x,
                                  std::uint8_t* to) const {
  const Compensated sums(*inner_, piece, state, x);
  const std::int64_t bytes = inner_->Encode(Unshifted(piece), sums.inner(), sums.v(), to);
  const Values decoded = MakeValues(piece.n);
  inner_->Decode({to, static_cast<std::size_t>(bytes)}, piece.n, 0, 1, decoded.get(),
                 piece.begin % bucket());
  sums.TakeDown(piece, decoded.get());
  return bytes;
}

void Feedback::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                      float* y, std::int64_t before) const {
  inner_->Decode(bytes, n, shift, divisor, y, before);
}

void Feedback::Round(const Piece& piece, CodecState* state, const float* x, float* y) const {
  const Compensated sums(*inner_, piece, state, x);
  inner_->Round(Unshifted(piece), sums.inner(), sums.v(), y);
  sums.TakeDown(piece, y);
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
