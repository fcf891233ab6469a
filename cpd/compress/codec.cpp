// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/codec.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <sstream>
#include <vector>

#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/queue.h"
#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/compress/packed.h"
#include "cpd/spec/error.h"

namespace cpd {

CodecState::~CodecState() = default;
void CodecState::Begin(const Piece& layer, const float* x) { BeginOn(HostQueue(), layer, x); }
void CodecState::Free() {}
void CodecState::SetGradient(float /*rms*/) {}
std::optional<int> CodecState::ChosenBits() const { return std::nullopt; }
std::vector<float> CodecState::Kept() const { return {}; }
void CodecState::Restore(std::span<const float> kept) {
  if (kept.empty()) return;
  throw Error("this codec keeps nothing from call to call, got " + std::to_string(kept.size()) +
              " values");
}

Codec::~Codec() = default;

float Codec::MeasureOn(const Queue& /*queue*/, const Piece& /*layer*/, CodecState* /*state*/,
                       const float* /*x*/) const {
  return 0;
}

std::optional<float> Codec::LargestOn(const Queue& /*queue*/, const CodecState& /*state*/) const {
  return std::nullopt;
}

void Codec::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                    float* y, SegmentCounts* /*counts*/) const {
  const std::int64_t before = piece.begin % bucket();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(MostBytes(piece.n, before)));
  const std::int64_t used = EncodeOn(queue, piece, state, x, bytes.data());
  DecodeOn(queue, std::span(bytes).first(static_cast<std::size_t>(used)), piece.n, 0, 1, y, before);
}

std::function<std::int64_t()> Codec::BytesOn(const SharedQueue& /*queue*/, const Piece& layer,
                                             CodecState* state, const float* x) const {
  return [bytes = LayerBytes(*this, layer, state, x)] { return bytes; };
}

float Codec::Measure(const Piece& layer, CodecState* state, const float* x) const {
  return MeasureOn(*HostQueue(), layer, state, x);
}
std::optional<float> Codec::Largest(const CodecState& state) const {
  return LargestOn(*HostQueue(), state);
}
std::int64_t Codec::Encode(const Piece& piece, CodecState* state, const float* x,
                           std::uint8_t* to) const {
  return EncodeOn(*HostQueue(), piece, state, x, to);
}
void Codec::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                   float* y, std::int64_t before) const {
  DecodeOn(*HostQueue(), bytes, n, shift, divisor, y, before);
}
void Codec::Round(const Piece& piece, CodecState* state, const float* x, float* y) const {
  RoundOn(*HostQueue(), piece, state, x, y);
}

bool Codec::Freezes(std::int64_t /*n*/) const { return false; }
std::unique_ptr<CodecState> Codec::MakeState(std::int64_t /*size*/) const { return nullptr; }
RowLayout Codec::LayoutOf(std::span<const std::int64_t> shape) const {
  if (!by_rows()) return {};
  std::int64_t row = 1;
  for (const std::int64_t extent : shape) row *= extent;
  if (shape.size() >= 2) row /= std::max<std::int64_t>(1, shape[0]);
  return {.row = std::max<std::int64_t>(1, row)};
}
SharedCodec Codec::ForRows(std::int64_t /*row*/) const { return nullptr; }
SharedCodec Codec::ForSums(const Format& format) const { return std::make_shared<Packed>(format); }
SharedCodec Codec::ForResults(const Format& /*format*/, int /*world*/) const { return nullptr; }

std::int64_t LayerBytes(const Codec& codec, const Piece& layer, CodecState* state, const float* x) {
  const std::int64_t block = codec.block();
  if (codec.is_fixed()) {
    const std::int64_t rest = layer.n % block;
    return layer.n / block * codec.MostBytes(block) + (rest == 0 ? 0 : codec.MostBytes(rest));
  }
  std::atomic<std::int64_t> bytes{0};
  parallel_for(layer.n, block, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> encoded(static_cast<std::size_t>(codec.MostBytes(block)));
    for (std::int64_t i = begin; i < end; i += block) {
      Piece piece = layer;
      piece.begin += i;
      piece.n = std::min(block, end - i);
      const bool is_encoded = codec.has_nan() || IsFinite(piece.n, x + i);
      bytes += is_encoded ? codec.Encode(piece, state, x + i, encoded.data()) : 4 * piece.n;
    }
  });
  return bytes;
}

std::int64_t BlockOfBucket(std::int64_t bucket) {
  const std::int64_t unit = std::lcm(bucket, std::int64_t{8});
  return (4096 + unit - 1) / unit * unit;
}

void Unscale(int shift, float divisor, std::int64_t n, const float* x, float* y) {
  UnscaleSpan(shift, divisor, n, x, y);
}

bool IsFinite(std::int64_t n, const float* x) {
  return Guarded([&] { return std::all_of(x, x + n, [](float v) { return std::isfinite(v); }); });
}

struct CodecStates::Entry {
  std::string text;
  std::int64_t size = 0;
  std::unique_ptr<CodecState> state;  // null from Load to the codec's first use
  std::vector<float> restored;
  // The index of the state's first value in the layer. If the index was not saved, it is not set
  // until the state is first used.
  std::optional<std::int64_t> begin;

  [[nodiscard]] std::vector<float> Values() const {
    return state == nullptr ? restored : state->Kept();
  }
};

namespace {

/// Erases seeds from a codec's text. Version 0.7 had the seed in the text; now the seed is an
/// argument of the call.
void EraseSeeds(std::string& text) {
  for (std::size_t at = 0; (at = text.find(" seed=", at)) != std::string::npos;) {
    text.erase(at, std::min(text.find(' ', at + 1), text.size()) - at);
  }
}

}  // namespace

CodecStates::CodecStates() = default;
CodecStates::~CodecStates() = default;
CodecStates::CodecStates(CodecStates&&) noexcept = default;
CodecStates& CodecStates::operator=(CodecStates&&) noexcept = default;

CodecState* CodecStates::Of(const Codec& codec, const Key& key, std::int64_t size,
                            const Begin& begin) {
  CodecState* const state = FindOrMake(codec, key, size, begin);
  if (state == nullptr || key.stage != Stage::contribution || !codec.needs_gradient()) return state;
  const std::optional<float> rms = GradientOf(key);
  if (!rms) {
    throw Error("codec '" + codec.name() +
                "' needs the root mean square of the gradient of tensor " +
                std::to_string(key.number) + " on rank " + std::to_string(key.rank) +
                ": set it in the call's states");
  }
  state->SetGradient(*rms);
  return state;
}

void CodecStates::SetGradient(std::int64_t number, std::optional<int> rank, float rms) {
  if (!(rms >= 0 && std::isfinite(rms))) {
    std::ostringstream given;
    given << rms;
    throw Error("a gradient's root mean square must be finite and not negative, got " +
                given.str());
  }
  if (!rank) std::erase_if(gradients_, [&](const auto& one) { return one.first.first == number; });
  gradients_[{number, rank}] = rms;
}

std::optional<float> CodecStates::GradientOf(const Key& key) const {
  auto found = gradients_.find({key.number, key.rank});
  if (found == gradients_.end()) found = gradients_.find({key.number, std::nullopt});
  return found == gradients_.end() ? std::nullopt : std::optional(found->second);
}

CodecState* CodecStates::FindOrMake(const Codec& codec, const Key& key, std::int64_t size,
                                    const Begin& begin) {
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    std::unique_ptr<CodecState> made = codec.MakeState(size);
    if (made == nullptr) return nullptr;
    found = entries_.emplace(key, Entry{codec.text(), size, std::move(made), {}, begin.now}).first;
  }
  Entry& entry = found->second;
  const bool fits = entry.text == codec.text() && entry.size == size;
  const std::int64_t kept_from = entry.begin.value_or(begin.unrotated);
  if (!fits || kept_from != begin.now) {
    if (entry.state != nullptr && entry.state->Kept().empty()) {
      entries_.erase(found);
      return FindOrMake(codec, key, size, begin);
    }
    if (fits) {
      throw Error("tensor number " + std::to_string(key.number) + ": rank " +
                  std::to_string(key.rank) + " kept the errors of its " + std::to_string(size) +
                  " results from index " + std::to_string(kept_from) + " on" +
                  (entry.begin ? "" : " (saved by version 0.7, whose owners do not rotate)") +
                  ", and now owns those from " + std::to_string(begin.now) +
                  " on; merge() or reset() the states");
    }
    throw Error("tensor number " + std::to_string(key.number) + " of rank " +
                std::to_string(key.rank) + " was kept by codec '" + entry.text + "' with " +
                std::to_string(entry.size) + " values, and now has codec '" + codec.text() +
                "' with " + std::to_string(size));
  }
  if (entry.state == nullptr) {
    entry.state = codec.MakeState(size);
    if (entry.state != nullptr) entry.state->Restore(entry.restored);
    entry.restored = {};
  }
  entry.begin = begin.now;
  return entry.state.get();
}

void CodecStates::Claim(const Owner& owner) {
  if (owner_ == owner) return;
  const auto is_owed = [](const auto& layer) {
    return std::ranges::any_of(layer.second.Values(), [](float x) { return x != 0; });
  };
  if (owner_ && std::ranges::any_of(entries_, is_owed)) {
    throw Error("these states are those of " + ToString(*owner_) + ", and were given to " +
                ToString(owner) +
                ": one cannot use what is kept of the other; load this rank's checkpoint, or "
                "merge() or reset() them");
  }
  if (owner_) entries_.clear();
  owner_ = owner;
  owner_loaded_ = false;
}

std::optional<CodecStates::Owner> CodecStates::owner() const {
  const auto is_kept = [](const auto& layer) { return !layer.second.Values().empty(); };
  return owner_loaded_ || std::ranges::any_of(entries_, is_kept) ? owner_ : std::nullopt;
}

void CodecStates::Reset(std::int64_t number) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.first.number == number; });
  std::erase_if(gradients_, [&](const auto& one) { return one.first.first == number; });
}
void CodecStates::Reset() {
  entries_.clear();
  gradients_.clear();
  owner_.reset();
  owner_loaded_ = false;
}

std::map<CodecStates::Key, CodecStates::Kept> CodecStates::Save() const {
  std::map<Key, Kept> all;
  for (const auto& [key, entry] : entries_) {
    std::vector<float> kept = entry.Values();
    if (!kept.empty()) all[key] = {entry.text, entry.size, std::move(kept), entry.begin};
  }
  return all;
}

void CodecStates::Load(std::map<Key, Kept> kept, std::optional<Owner> owner) {
  entries_.clear();
  gradients_.clear();
  owner_ = owner;
  owner_loaded_ = owner.has_value();
  for (auto& [key, one] : kept) {
    EraseSeeds(one.text);
    entries_.emplace(key, Entry{one.text, one.size, nullptr, std::move(one.values), one.begin});
  }
}

std::string ToString(const CodecStates::Owner& owner) {
  const std::string which = owner.rank ? "rank " + std::to_string(*owner.rank) + " of " : "all ";
  return which + std::to_string(owner.world) + " ranks";
}

}  // namespace cpd
