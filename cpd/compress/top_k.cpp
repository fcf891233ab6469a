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

#include "cpd/backend/cpu/largest.h"
#include "cpd/backend/queue.h"
#include "cpd/base/guarded.h"
#include "cpd/base/plans.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/places.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/sparse.h"
#include "cpd/compress/words.h"
#include "cpd/numeric/scaled/gap_codes.h"
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
constexpr std::int64_t kMessage = std::int64_t{1} << 16;  // the number of values of a message

/// Returns the number of tiles (of kCodeTile values) in a span, a range of values for which GPU
/// kernels make one count of selected values. The number is a power of two, at most the number of
/// tiles in a block. It is the least such number that gives at most 1024 spans, if there is one.
std::int32_t SpanOf(std::int64_t n, std::int64_t block) {
  constexpr std::int64_t kSpans = 1024;
  std::int64_t span = 1;
  while (span < block / kCodeTile && tiles_of(n) > kSpans * span) span *= 2;
  return static_cast<std::int32_t>(span);
}

/// Returns the number of bytes of all messages of a layer. `places` has, for each message, the
/// number of selected values and the number of bits that their indices take. `inner` encodes the
/// values.
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

/// The residual of a layer, if the codec has one, and the values that select_top_k has selected for
/// sending. `call` has their addresses in the device's memory; on the CPU, `sent` holds them.
struct TopK::Sending final : Residual {
  Sending(const TopK& codec, std::int64_t size)
      : Residual(codec.feeds_back_ ? size : 0),
        codec(codec.inner_),
        n(size),
        count(codec.Count(size)) {}

  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override {
    Residual::BeginOn(queue, layer, x);
    Select(queue, x);
    inner = codec->MakeState(kept_count);
    if (inner != nullptr && gradient) inner->SetGradient(*gradient);
    if (inner != nullptr) inner->BeginOn(queue, InnerOf(layer), gathered.get());
  }
  void Commit() override {
    Residual::Commit();
    if (inner != nullptr) inner->Commit();
    Free();  // The queue's stream may end before the next call.
  }
  void Free() override {
    if (inner != nullptr) inner->Free();
    call = {};
    sum_ = gathered = nullptr;
    search_ = nullptr;
    Residual::Free();
  }

  void SetGradient(float rms) override { gradient = rms; }
  [[nodiscard]] std::optional<int> ChosenBits() const override {
    return inner == nullptr ? std::nullopt : inner->ChosenBits();
  }

  [[nodiscard]] Piece InnerOf(const Piece& layer) const { return TopK::InnerOf(layer, kept_count); }
  /// Copies a number that the search for the largest values has computed, such as TopKSearch::kept,
  /// to the host, and waits for it. Returns 0 for a layer without values.
  template <class T>
  [[nodiscard]] T Read(const Queue& queue, T TopKSearch::* number) const {
    T found{};
    if (n > 0) queue.Copy(&found, &(call.search->*number), sizeof(found));
    return found;
  }
  /// Returns the arguments of the operations that round a piece (a range of a layer's values) or
  /// record the errors of its values.
  [[nodiscard]] TopKCall CallOf(const Piece& piece) const {
    TopKCall rounding = call;
    rounding.begin = piece.begin;
    rounding.end = piece.begin + piece.n;
    rounding.shift = piece.shift;
    rounding.cast.seed = piece.key.seed;
    rounding.stream = piece.key.stream;
    if (codec->measured() == Measured::shared) rounding.unit = piece.scale;
    return rounding;
  }

  SharedCodec codec;
  std::int64_t n, count;
  std::int64_t kept_count = 0;      ///< the number of values sent; 0 if the operation casts them
  std::shared_ptr<float> gathered;  ///< these values; null if the operation casts them
  Selection sent;
  TopKCall call;
  std::unique_ptr<CodecState> inner;
  std::optional<float> gradient;

 private:
  /// Queues the selection of values. If the inner codec is a packed format, sets call.cast, by
  /// which later operations, such as encoding, round the selected values, and does not wait.
  /// Otherwise waits for the number of selected values, and copies the selected values one after
  /// the other into `gathered`.
  void Select(const SharedQueue& queue, const float* x) {
    call = {};
    call.n = n;
    call.k = count;
    call.x = x;
    call.block = kMessage;
    call.span = SpanOf(n, kMessage);
    call.selection = &sent;
    sent.places.clear();
    sent.values.clear();
    if (size() > 0) {
      sum_ = QueuedValues(queue, queue->ForKernels(n));
      call.kept = kept(0);
      call.sum = sum_.get();
      call.next = next(0);
    }
    if (n > 0) {
      const std::int64_t spans = (tiles_of(n) + call.span - 1) / call.span + 1;
      const std::int64_t bytes = kPatternDigits * std::int64_t{sizeof(DigitCounts)} +
                                 spans * std::int64_t{sizeof(TopKSpan)};
      search_ = QueuedValues<std::byte>(
          queue, std::int64_t{sizeof(TopKSearch)} + queue->ForKernels(bytes));
      call.search = reinterpret_cast<TopKSearch*>(search_.get());
      call.counts_of = reinterpret_cast<DigitCounts*>(call.search + 1);
      call.spans = reinterpret_cast<TopKSpan*>(call.counts_of + kPatternDigits);
      queue->select_top_k(call);
    }
    kept_count = 0;
    gathered = nullptr;
    if (const auto* packed = dynamic_cast<const Packed*>(codec.get())) {
      call.cast = PlanOf(packed->format(), packed->rounding());
      return;
    }
    kept_count = Read(*queue, &TopKSearch::kept);
    gathered = QueuedValues(queue, kept_count);
    call.gathered = gathered.get();
    if (kept_count > 0) queue->gather_top_k(call);
  }

  std::shared_ptr<float> sum_;
  std::shared_ptr<std::byte> search_;
};

/// The selected values of a piece (a range of a layer's values). On a device other than the CPU,
/// the piece is the whole layer, and the indices of the values are not known.
struct TopK::Run {
  Run(const Piece& of, const Sending& sending) : piece(sending.InnerOf(of)) {
    const Selection& sent = sending.sent;
    if (sent.places.empty()) return;
    const RankRange ranks = sent.Within(of.begin, of.begin + of.n);
    piece.begin = ranks.first;
    piece.n = ranks.size();
    places =
        std::span(sent.places)
            .subspan(static_cast<std::size_t>(ranks.first), static_cast<std::size_t>(ranks.size()));
    if (of.random == nullptr) return;
    for (const std::int64_t place : places) random.push_back(of.random[place - of.begin]);
    piece.random = random.data();
  }

  Piece piece;  ///< the piece of the inner codec's layer
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
  if (state != nullptr && !state->Kept().empty()) refuse("neighbors that stay from call to call");
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
  return inner_->MeasureOn(queue, sending.InnerOf(layer), sending.inner.get(),
                           sending.gathered.get());
}

std::optional<float> TopK::LargestOn(const Queue& queue, const CodecState& state) const {
  const auto& sending = dynamic_cast<const Sending&>(state);
  return std::bit_cast<float>(sending.Read(queue, &TopKSearch::largest));
}

void TopK::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* /*x*/,
                   float* y, SegmentCounts* counts) const {
  if (piece.n == 0) return;
  const auto& sending = dynamic_cast<const Sending&>(*state);
  TopKCall call = sending.CallOf(piece);
  std::optional<QueuedArray<float>> terms;
  if (sending.gathered != nullptr) {
    const Run run(piece, sending);
    terms.emplace(queue, run.piece.n);
    inner_->RoundOn(queue, run.piece, sending.inner.get(), sending.gathered.get() + run.piece.begin,
                    terms->data());
    call.terms = terms->data();
  }
  call.y = y;
  call.counts = counts;
  queue.round_top_k(call);
}

std::function<std::int64_t()> TopK::BytesOn(const SharedQueue& queue, const Piece& layer,
                                            CodecState* state, const float* x) const {
  if (!counts_bytes()) return Codec::BytesOn(queue, layer, state, x);
  TopKCall call = dynamic_cast<const Sending&>(*state).call;
  const std::int64_t blocks = (layer.n + call.block - 1) / call.block;
  const auto memory = QueuedValues<TopKPlaces>(queue, blocks);
  call.places = memory.get();
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
  const auto& sending = dynamic_cast<const Sending&>(*state);
  const Run run(piece, sending);
  const std::uint8_t* const begin = to;
  to = PutPlaces(run.places, piece.begin, piece.n, to);
  if (run.places.empty()) return to - begin;
  const std::int64_t before = run.piece.begin % inner_->bucket();
  if (inner_->bucket() > 1) to = PutNumber(before, to);
  const std::int64_t size = inner_->EncodeOn(queue, run.piece, sending.inner.get(),
                                             sending.sent.values.data() + run.piece.begin, to);
  if (feeds_back_) {
    const QueuedArray<float> decoded(queue, run.piece.n);
    inner_->DecodeOn(queue, {to, static_cast<std::size_t>(size)}, run.piece.n, 0, 1, decoded.data(),
                     before);
    TopKCall call = sending.CallOf(piece);
    call.terms = decoded.data();
    queue.round_top_k(call);
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
