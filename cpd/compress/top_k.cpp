// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/base/plans.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/largest.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/places.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/sparse.h"
#include "cpd/compress/words.h"
#include "cpd/numeric/scaled/gap_codes.h"
#include "cpd/numeric/scaled/largest_limit.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kBillion = 1000000000;
constexpr std::array<std::string_view, 2> kFeedback{"off", "on"};
struct FeedbackOption {
  bool feeds_back = true;
};
constexpr std::array<Key<FeedbackOption>, 1> kTopKKeys{
    ChoiceKey<"feedback", &FeedbackOption::feeds_back, kFeedback>()};
constexpr Keys<FeedbackOption> kTopK{"top_k", kTopKKeys};
constexpr std::int64_t kMessage = std::int64_t{1} << 16;  // values of a message

template <class T>
std::int64_t FloatsOf(std::int64_t n) {
  static_assert(sizeof(T) % sizeof(float) == 0);
  return n * std::int64_t{sizeof(T) / sizeof(float)};
}

/// The tiles of a span, a power of two up to a block's: few, while that makes no more spans than a
/// device runs at once.
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

/// A layer's residual, where there is one, and the values that the current call sends: their
/// indices and values on the CPU; elsewhere the limit that selects them, in the call's memory. On
/// the CPU Begin writes every v as the next residual, and Run::Leave that of the values that are
/// sent.
struct TopK::Sending final : Residual {
  Sending(const TopK& codec, std::int64_t size)
      : Residual(codec.feeds_back_ ? size : 0),
        codec(codec.inner_),
        n(size),
        count(codec.Count(size)) {}

  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override {
    Residual::BeginOn(queue, layer, x);
    if (queue->on_host()) {
      Find(x);
    } else {
      Select(queue, x);
    }
    inner = codec->MakeState(kept_count);
    if (inner != nullptr && gradient) inner->SetGradient(*gradient);
    if (inner != nullptr) inner->BeginOn(queue, InnerOf(layer), values());
  }
  void Commit() override {
    Residual::Commit();
    if (inner != nullptr) inner->Commit();
    Free();  // The queue's stream may end before the next call.
  }
  void Free() override {
    if (inner != nullptr) inner->Free();
    call = {};
    sum_ = search_ = gathered = nullptr;
    Residual::Free();
  }

  void SetGradient(float rms) override { gradient = rms; }
  [[nodiscard]] std::optional<int> ChosenBits() const override {
    return inner == nullptr ? std::nullopt : inner->ChosenBits();
  }

  [[nodiscard]] Piece InnerOf(const Piece& layer) const { return TopK::InnerOf(layer, kept_count); }
  [[nodiscard]] const float* values() const {
    return gathered == nullptr ? sent.values.data() : gathered.get();
  }
  /// A number of the search; waits. 0 for a layer without values.
  template <class T>
  [[nodiscard]] T Read(const Queue& queue, T TopKSearch::* number) const {
    T found{};
    if (n > 0) queue.Copy(&found, &(call.search->*number), sizeof(found));
    return found;
  }

  SharedCodec codec;
  std::int64_t n, count;
  std::int64_t kept_count = 0;  ///< how many values are sent; 0 where the device casts them
  Selection sent;
  TopKCall call;  ///< of the call's device
  std::shared_ptr<float> gathered;
  std::unique_ptr<CodecState> inner;
  std::optional<float> gradient;

 private:
  void Find(const float* x) {
    Summands of{.n = n, .x = x};
    if (size() > 0) {
      of.r = kept(0);
      of.sum = next(0);
    }
    FindLargest(of, count, sent);
    kept_count = static_cast<std::int64_t>(sent.values.size());
    gathered = nullptr;
  }

  /// Selects by kernels. Waits for how many values are kept, and gathers them, unless they are
  /// cast.
  void Select(const SharedQueue& queue, const float* x) {
    call = {};
    call.n = n;
    call.k = count;
    call.x = x;
    call.block = kMessage;
    call.span = SpanOf(n, kMessage);
    if (size() > 0) {
      sum_ = QueuedValues(queue, n);
      call.kept = kept(0);
      call.sum = sum_.get();
      call.next = next(0);
    }
    if (n > 0) {
      const std::int64_t spans = (tiles_of(n) + call.span - 1) / call.span + 1;
      const std::int64_t floats = FloatsOf<TopKSearch>(1) + FloatsOf<TopKSpan>(spans);
      search_ = QueuedValues(queue, floats);
      call.search = reinterpret_cast<TopKSearch*>(search_.get());
      call.spans = reinterpret_cast<TopKSpan*>(call.search + 1);
      queue->Clear(search_.get(), floats * std::int64_t{sizeof(float)});
      queue->select_top_k(call);
    }
    kept_count = 0;
    if (const auto* packed = dynamic_cast<const Packed*>(codec.get())) {
      call.cast = PlanOf(packed->format(), packed->rounding());
      return;
    }
    kept_count = Read(*queue, &TopKSearch::kept);
    gathered = QueuedValues(queue, kept_count);
    call.gathered = gathered.get();
    if (kept_count > 0) queue->gather_top_k(call);
  }

  std::shared_ptr<float> sum_, search_;
};

/// The kept values of a piece.
struct TopK::Run {
  Run(const Piece& of, CodecState* state) : sending(dynamic_cast<Sending&>(*state)) {
    const auto first = std::ranges::lower_bound(sending.sent.places, of.begin);
    const auto last = std::ranges::lower_bound(sending.sent.places, of.begin + of.n);
    piece = sending.InnerOf(of);
    piece.begin = first - sending.sent.places.begin();
    piece.n = last - first;
    places = {first, last};
    if (of.random == nullptr) return;
    for (const std::int64_t place : places) random.push_back(of.random[place - of.begin]);
    piece.random = random.data();
  }
  [[nodiscard]] const float* values() const { return sending.sent.values.data() + piece.begin; }
  [[nodiscard]] std::int64_t before() const { return piece.begin % sending.codec->bucket(); }

  /// Records the residuals of the kept values, which decode to `decoded` times 2^shift.
  void Leave(std::vector<float> decoded) const {
    const float unit = sending.codec->measured() == Measured::shared ? piece.scale : 1;
    Guarded([&] {
      for (float& value : decoded) value *= unit;
    });
    if (piece.shift != 0) {
      Unscale(-piece.shift, 1, piece.n, decoded.data(), decoded.data());
    }
    Guarded([&] {
      for (std::size_t k = 0; k < places.size(); ++k) {
        *sending.next(places[k]) = error_of(values()[k], decoded[k]);
      }
    });
  }

  Sending& sending;
  Piece piece;  ///< of the inner codec's layer
  std::span<const std::int64_t> places;
  std::vector<std::uint32_t> random;
};

TopK::TopK(double fraction, bool feeds_back, SharedCodec inner)
    : billionths_(Guarded([&] { return std::llround(fraction * static_cast<double>(kBillion)); })),
      feeds_back_(feeds_back),
      inner_(std::move(inner)) {
  const double there =
      Guarded([&] { return static_cast<double>(billionths_) / static_cast<double>(kBillion); });
  if (billionths_ < 1 || billionths_ > kBillion || there != fraction) {
    throw Error("top_k takes a fraction above 0 up to 1 with at most 9 decimals, got " +
                NumberText(fraction));
  }
  const auto refuse = [&](const std::string& why) {
    throw Error("top_k: the values that are kept have no " + why + ", so '" + inner_->name() +
                "' cannot encode them");
  };
  if (inner_->by_rows()) refuse("rows");
  const std::unique_ptr<CodecState> state = inner_->MakeState(1);
  if (state != nullptr && !state->Kept().empty()) refuse("neighbours that stay from call to call");
  has_scales_ = dynamic_cast<const Packed*>(inner_.get()) == nullptr;
  if (!has_scales_ && inner_->format().has_zero()) format_ = inner_->format();
}

SharedCodec TopK::Make(CodecWords& words, const RoundingOptions& rounding) {
  const double fraction = ParseNumber("top_k's fraction", words.Next(), 0, 1);
  FeedbackOption option;
  (void)words.Take(kTopK, option);
  return std::make_shared<TopK>(fraction, option.feeds_back,
                                MakeInner(words, ToString(kFp32), rounding));
}

Piece TopK::InnerOf(const Piece& layer, std::int64_t kept) {
  return {.layer = layer.layer,
          .n = kept,
          .shift = layer.shift,
          .key = layer.key,
          .size = kept,
          .scale = layer.scale};
}

std::string TopK::Head() const {
  return "top_k " + NumberText(static_cast<double>(billionths_) / static_cast<double>(kBillion)) +
         TextOfKeys(kTopK, {.feeds_back = feeds_back_}, {});
}

std::string TopK::name() const {
  const std::string inner = inner_->name();
  return Head() + (inner == ToString(kFp32) ? "" : " " + inner);
}

std::string TopK::text() const { return Head() + " " + inner_->text(); }

std::int64_t TopK::Count(std::int64_t n) const {
  const std::int64_t rest = n % kBillion * billionths_;
  return n / kBillion * billionths_ + (rest + kBillion - 1) / kBillion;
}

std::int64_t TopK::MostBytes(std::int64_t n, std::int64_t /*before*/) const {
  if (n == 0) return 0;
  return MostPlaceBytes(n) + kMostNumberBytes + inner_->MostBytes(n, inner_->bucket() - 1);
}

KernelSupport TopK::kernels() const {
  const bool rounds = dynamic_cast<const Packed*>(inner_.get()) != nullptr ||
                      (inner_->kernels() != KernelSupport::none && inner_->is_fixed());
  return rounds && inner_->has_nan() ? KernelSupport::round : KernelSupport::none;
}

float TopK::MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                      const float* /*x*/) const {
  const auto& sending = dynamic_cast<const Sending&>(*state);
  return inner_->MeasureOn(queue, sending.InnerOf(layer), sending.inner.get(), sending.values());
}

std::optional<float> TopK::LargestOn(const Queue& queue, const CodecState& state) const {
  const auto& sending = dynamic_cast<const Sending&>(state);
  if (!queue.on_host()) return std::bit_cast<float>(sending.Read(queue, &TopKSearch::largest));
  float largest = 0;
  for (const float value : sending.sent.values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

void TopK::RoundOnHost(const Queue& queue, const Piece& piece, CodecState* state, float* y) const {
  const Run run(piece, state);
  std::vector<float> decoded(run.places.size());
  inner_->RoundOn(queue, run.piece, run.sending.inner.get(), run.values(), decoded.data());
  std::fill_n(y, piece.n, 0.0F);
  for (std::size_t k = 0; k < decoded.size(); ++k) y[run.places[k] - piece.begin] = decoded[k];
  if (feeds_back_) run.Leave(std::move(decoded));
}

void TopK::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* /*x*/,
                   float* y, SegmentCounts* counts) const {
  if (queue.on_host()) return RoundOnHost(queue, piece, state, y);
  if (piece.n == 0) return;
  const auto& sending = dynamic_cast<const Sending&>(*state);
  TopKCall call = sending.call;
  call.shift = piece.shift;
  call.cast.seed = piece.key.seed;
  call.stream = piece.key.stream;
  std::optional<QueuedArray<float>> terms;
  if (sending.gathered != nullptr) {
    const Piece values = sending.InnerOf(piece);
    terms.emplace(queue, values.n);
    inner_->RoundOn(queue, values, sending.inner.get(), sending.values(), terms->data());
    call.terms = terms->data();
    if (measured() == Measured::shared) call.unit = piece.scale;
  }
  call.y = y;
  call.counts = counts;
  queue.round_top_k(call);
}

std::function<std::int64_t()> TopK::BytesOn(const SharedQueue& queue, const Piece& layer,
                                            CodecState* state, const float* x) const {
  if (queue->on_host()) return Codec::BytesOn(queue, layer, state, x);
  TopKCall call = dynamic_cast<const Sending&>(*state).call;
  const std::int64_t blocks = (layer.n + call.block - 1) / call.block;
  const auto memory = QueuedValues(queue, FloatsOf<TopKPlaces>(blocks));
  call.places = reinterpret_cast<TopKPlaces*>(memory.get());
  if (blocks > 0) queue->count_top_k(call);
  return [queue, memory, blocks, inner = inner_] {
    std::vector<TopKPlaces> places(static_cast<std::size_t>(blocks));
    const auto bytes = static_cast<std::int64_t>(places.size() * sizeof(TopKPlaces));
    if (blocks > 0) queue->Copy(places.data(), memory.get(), bytes);
    return BytesOf(*inner, places);
  };
}

std::int64_t TopK::EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                            const float* /*x*/, std::uint8_t* to) const {
  if (piece.n == 0) return 0;
  const Run run(piece, state);
  const std::uint8_t* const begin = to;
  to = PutPlaces(run.places, piece.begin, piece.n, to);
  if (run.places.empty()) return to - begin;
  if (inner_->bucket() > 1) to = PutNumber(run.before(), to);
  const std::int64_t size =
      inner_->EncodeOn(queue, run.piece, run.sending.inner.get(), run.values(), to);
  if (feeds_back_) {
    std::vector<float> decoded(run.places.size());
    inner_->DecodeOn(queue, {to, static_cast<std::size_t>(size)}, run.piece.n, 0, 1, decoded.data(),
                     run.before());
    run.Leave(std::move(decoded));
  }
  return to + size - begin;
}

void TopK::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                    int shift, float divisor, float* y, std::int64_t /*before*/) const {
  if (n == 0 && bytes.empty()) return;
  const std::vector<std::int64_t> places = TakePlaces(bytes, n);
  std::vector<float> values(places.size());
  if (!places.empty()) {
    const std::int64_t before =
        inner_->bucket() > 1 ? TakeNumber(bytes, inner_->bucket() - 1) : std::int64_t{0};
    inner_->DecodeOn(queue, bytes, static_cast<std::int64_t>(places.size()), shift, divisor,
                     values.data(), before);
  } else if (!bytes.empty()) {
    throw DamagedBytes(std::to_string(bytes.size()) + " bytes follow, though no value is kept");
  }
  std::fill_n(y, n, 0.0F / divisor);
  for (std::size_t k = 0; k < places.size(); ++k) y[places[k]] = values[k];
}

std::unique_ptr<CodecState> TopK::MakeState(std::int64_t size) const {
  return std::make_unique<Sending>(*this, size);
}

SharedCodec TopK::ForResults(const Format& format, int /*world*/) const {
  if (!format.has_zero()) return nullptr;
  return std::make_shared<Sparse>(format);
}

}  // namespace cpd
