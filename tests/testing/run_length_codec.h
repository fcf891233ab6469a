// SPDX-License-Identifier: Apache-2.0
//
// A codec for tests whose messages vary in size. The codec casts values to a format as the packed
// codec does, and stores each run of equal values as a count and a binary32 value. A sum of such
// messages therefore equals the sum of packed values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/compress/packed.h"
#include "cpd/spec/rounding.h"

namespace cpd::testing {

class RunLength : public Codec {
 public:
  static constexpr std::int64_t kRunBytes = 5;
  static constexpr std::int64_t kLongest = 255;

  explicit RunLength(const Format& format, const RoundingOptions& rounding = {},
                     bool feeds_back = false)
      : cast_(std::make_shared<Packed>(format, rounding)), feeds_back_(feeds_back) {}

  /// Returns true for a range that the codec must encode as damaged bytes, which decoders refuse.
  std::function<bool(const Piece&)> damages = [](const Piece&) { return false; };

  [[nodiscard]] std::string name() const override { return "run_length"; }
  [[nodiscard]] std::string text() const override {
    return "run_length of " + cast_->text() + (feeds_back_ ? " feedback" : "");
  }
  [[nodiscard]] const Format& format() const override { return cast_->format(); }
  [[nodiscard]] bool may_hop() const override { return true; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t /*before*/) const override {
    return kRunBytes * n;
  }

  std::int64_t EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* state,
                        const float* x, std::uint8_t* to) const override {
    std::vector<float> values(static_cast<std::size_t>(piece.n));
    cast_->Round(piece, nullptr, Sent(piece, state, x), values.data());
    std::uint8_t* end = to;
    for (std::int64_t i = 0; i < piece.n;) {
      const std::uint32_t bits = BitsOf(values, i);
      std::int64_t run = 1;
      while (run < kLongest && i + run < piece.n && BitsOf(values, i + run) == bits) ++run;
      *end = static_cast<std::uint8_t>(damages(piece) ? 0 : run);
      std::memcpy(end + 1, &bits, sizeof(bits));
      end += kRunBytes;
      i += run;
    }
    return end - to;
  }

  void DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes, std::int64_t n,
                int shift, float divisor, float* y, std::int64_t /*before*/) const override {
    if (bytes.size() % kRunBytes != 0) throw DamagedBytes("a run is cut off");
    std::int64_t at = 0;
    for (std::size_t i = 0; i < bytes.size(); i += kRunBytes) {
      if (bytes[i] == 0) throw DamagedBytes("a run of nothing");
      if (at + bytes[i] > n) throw DamagedBytes("runs of more than the values");
      float value = 0;
      std::memcpy(&value, bytes.data() + i + 1, sizeof(value));
      std::fill_n(y + at, bytes[i], value);
      at += bytes[i];
    }
    if (at != n) throw DamagedBytes("runs of fewer than the values");
    Unscale(shift, divisor, n, y, y);
  }

  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override {
    if (!feeds_back_) return nullptr;
    return std::make_unique<Feedback>(cast_, size);
  }
  [[nodiscard]] SharedCodec ForSums(const Format& format) const override {
    return std::make_shared<RunLength>(format);
  }

 private:
  /// The rounding errors of a layer in one call. The next call adds these errors to its values.
  struct Feedback : CodecState {
    Feedback(SharedCodec codec, std::int64_t size)
        : cast(std::move(codec)),
          lost(static_cast<std::size_t>(size)),
          sent(lost.size()),
          next(lost.size()) {}
    void BeginOn(const SharedQueue& /*queue*/, const Piece& layer, const float* x) override {
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = x[i] + lost[i];
      cast->Round(layer, nullptr, sent.data(), next.data());
      for (std::size_t i = 0; i < sent.size(); ++i) {
        next[i] = sent[i] - std::ldexp(next[i], -layer.shift);
      }
    }
    void Commit() override { lost = next; }
    [[nodiscard]] std::vector<float> Kept() const override { return lost; }
    void Restore(std::span<const float> kept) override { lost.assign(kept.begin(), kept.end()); }

    SharedCodec cast;
    std::vector<float> lost, sent, next;
  };

  static std::uint32_t BitsOf(const std::vector<float>& values, std::int64_t i) {
    return std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]);
  }
  static const float* Sent(const Piece& piece, CodecState* state, const float* x) {
    if (state == nullptr) return x;
    return dynamic_cast<const Feedback&>(*state).sent.data() + piece.begin;
  }
  SharedCodec cast_;  ///< what values become
  bool feeds_back_;
};

}  // namespace cpd::testing
