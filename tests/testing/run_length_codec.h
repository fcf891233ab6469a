// SPDX-License-Identifier: Apache-2.0
//
// A codec whose sizes vary, for tests: values are cast to a format, as packed ones are, and equal
// neighbours become one run of a count and a binary32. So the sums are those of packed values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/numeric/rounding.h"
#include "cpd/ops/reduce.h"

namespace cpd::testing {

class RunLength : public Codec {
 public:
  static constexpr std::int64_t kRunBytes = 5;
  static constexpr std::int64_t kLongest = 255;

  explicit RunLength(const Format& format, const RoundingOptions& rounding = {},
                     bool feeds_back = false)
      : format_(format), rounding_(rounding), feeds_back_(feeds_back) {}

  /// Pieces whose bytes no decoder takes.
  std::function<bool(const Piece&)> damages = [](const Piece&) { return false; };

  [[nodiscard]] std::string text() const override {
    return "run_length " + ToString(format_) + " " + ToString(rounding_.mode) + " " +
           std::to_string(rounding_.seed) + (feeds_back_ ? " feedback" : "");
  }
  [[nodiscard]] const Format& format() const override { return format_; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n) const override { return kRunBytes * n; }

  std::int64_t Encode(const Piece& piece, const CodecState* state, const float* x,
                      std::uint8_t* to) const override {
    std::vector<float> values(static_cast<std::size_t>(piece.n));
    RoundOnly(piece, Sent(piece, state, x), values.data());
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

  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y) const override {
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
    return std::make_unique<Feedback>(*this, size);
  }
  [[nodiscard]] SharedCodec ForSums(const Format& format) const override {
    return std::make_shared<RunLength>(format);
  }

 private:
  /// What earlier calls lost is sent with the next.
  class Feedback : public CodecState {
   public:
    Feedback(const RunLength& codec, std::int64_t size)
        : codec_(codec.format_, codec.rounding_),
          lost_(static_cast<std::size_t>(size)),
          sent(lost_.size()),
          next_(lost_.size()) {}
    void Begin(const Piece& layer, const float* x) override {
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = x[i] + lost_[i];
      codec_.RoundOnly(layer, sent.data(), next_.data());
      for (std::size_t i = 0; i < sent.size(); ++i) {
        next_[i] = sent[i] - std::ldexp(next_[i], -layer.shift);
      }
    }
    void Commit() override { lost_ = next_; }

   private:
    RunLength codec_;
    std::vector<float> lost_;

   public:
    std::vector<float> sent;

   private:
    std::vector<float> next_;
  };

  static std::uint32_t BitsOf(const std::vector<float>& values, std::int64_t i) {
    return std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]);
  }
  static const float* Sent(const Piece& piece, const CodecState* state, const float* x) {
    if (state == nullptr) return x;
    return dynamic_cast<const Feedback&>(*state).sent.data() + piece.begin;
  }
  void RoundOnly(const Piece& piece, const float* x, float* y) const {
    RoundingOptions rounding = rounding_;
    rounding.stream = piece.stream;
    CastScaled(format_, rounding, piece.shift, piece.begin, piece.n, x, y);
  }

  Format format_;
  RoundingOptions rounding_;
  bool feeds_back_;
};

}  // namespace cpd::testing
