// SPDX-License-Identifier: Apache-2.0
//
// A minimal codec with buckets, for tests of exchanges. A bucket is stored as its largest |v| and
// one byte for each value v. The byte holds v's sign, and whether a random fraction is below |v|
// divided by the largest. Options turn on the features that the engine supports: error feedback,
// results that are encoded again, rows, and one scale for all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/compress/packed.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/spec/error.h"

namespace cpd::testing {

class Buckets final : public Codec {
 public:
  struct Options {
    std::int64_t bucket = 64;
    bool by_rows = false;
    bool feeds_back = false;
    bool encodes_results = true;
    Measured measured = Measured::nothing;  ///< else buckets have no scale of their own
    bool fixed = true;                      ///< else zeros at the end of a block do not travel
  };
  explicit Buckets(const Options& options) : options_(options) {}

  [[nodiscard]] std::string name() const override {
    return "buckets " + std::to_string(options_.bucket) + (options_.by_rows ? " rows" : "") +
           (options_.feeds_back ? " feedback" : "") + (options_.encodes_results ? "" : " sums") +
           (options_.fixed ? "" : " short") + " " +
           std::to_string(static_cast<int>(options_.measured));
  }
  [[nodiscard]] std::string text() const override { return name(); }
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return options_.fixed; }
  [[nodiscard]] std::int64_t block() const override { return BlockOfBucket(options_.bucket); }
  [[nodiscard]] std::int64_t bucket() const override { return options_.bucket; }
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] bool by_rows() const override { return options_.by_rows; }
  [[nodiscard]] Measured measured() const override { return options_.measured; }
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override {
    Options of_row = options_;
    of_row.bucket = row;
    return std::make_shared<Buckets>(of_row);
  }
  [[nodiscard]] SharedCodec ForResults(const Format& /*format*/, int /*world*/) const override {
    if (!options_.encodes_results) return nullptr;
    Options own = options_;
    own.measured = Measured::nothing;
    return std::make_shared<Buckets>(own);
  }

  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override {
    return n + 4 * (has_own_scales() ? Touched(n, before) : 1);
  }

  [[nodiscard]] float MeasureOn(const Queue& /*queue*/, const Piece& layer, CodecState* state,
                                const float* x) const override {
    return Largest(Sent(layer, state, x), layer.size);
  }

  std::int64_t EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* state,
                        const float* x, std::uint8_t* to) const override {
    std::int64_t begin = piece.begin;
    std::int64_t end = piece.begin + piece.n;
    if (piece.size > 0) {  // the layer is there
      begin -= begin % options_.bucket;
      end = std::min(piece.size, (end + options_.bucket - 1) / options_.bucket * options_.bucket);
    }
    Piece whole = piece;
    whole.begin = begin;
    whole.n = end - begin;
    const std::vector<float> v = Sent(whole, state, x - (piece.begin - begin));
    std::vector<float> scales;
    for (std::int64_t b = begin; b < end && has_own_scales(); b += options_.bucket) {
      scales.push_back(Largest(std::span(v).subspan(static_cast<std::size_t>(b - begin)),
                               std::min(options_.bucket, end - b)));
    }
    if (!has_own_scales()) scales.push_back(piece.scale);
    if (!scales.empty()) std::memcpy(to, scales.data(), 4 * scales.size());
    std::uint8_t* codes = to + 4 * scales.size();
    std::int64_t used = 0;
    for (std::int64_t i = 0; i < piece.n; ++i) {
      const float value = v[static_cast<std::size_t>(piece.begin - begin + i)];
      const float scale = scales[has_own_scales() ? Bucket(i, piece.begin % options_.bucket) : 0];
      const auto words = philox_from<std::uint32_t>(static_cast<std::uint32_t>(piece.begin + i), 0,
                                                    7, piece.key.stream);
      const bool up = std::fabs(value) * 4294967296.0 > double{scale} * words.word[0];
      codes[i] = static_cast<std::uint8_t>(up ? (value < 0 ? 2 : 1) : 0);
      if (codes[i] != 0) used = i + 1;
      if (state != nullptr) {
        auto& kept = dynamic_cast<Feedback&>(*state);
        const float q = ValueOf(codes[i], scale);
        kept.next[static_cast<std::size_t>(piece.begin - kept.begin + i)] = value - q;
      }
    }
    if (options_.fixed) used = piece.n;
    return 4 * static_cast<std::int64_t>(scales.size()) + used;
  }

  void DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes, std::int64_t n,
                int shift, float divisor, float* y, std::int64_t before = 0) const override {
    const std::int64_t count = has_own_scales() ? Touched(n, before) : 1;
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (size > MostBytes(n, before) || size < 4 * count ||
        (options_.fixed && size != MostBytes(n, before))) {
      throw DamagedBytes("another number of bytes");
    }
    std::vector<float> scales(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(scales.data(), bytes.data(), 4 * scales.size());
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = 4 * count + i;
      const std::uint8_t code = at < size ? bytes[static_cast<std::size_t>(at)] : 0;
      if (code > 2) throw DamagedBytes("no such code");
      const float scale = scales[has_own_scales() ? Bucket(i, before) : 0];
      y[i] = ValueOf(code, options_.measured == Measured::shared ? 1 : scale);
    }
    Unscale(shift, divisor, n, y, y);
  }

  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override {
    if (!options_.feeds_back) return nullptr;
    return std::make_unique<Feedback>(size);
  }

 private:
  struct Feedback : CodecState {
    explicit Feedback(std::int64_t size) : lost(static_cast<std::size_t>(size)), next(lost) {}
    void BeginOn(const SharedQueue& /*queue*/, const Piece& layer, const float* /*x*/) override {
      begin = layer.begin;
    }
    void Commit() override { lost = next; }
    [[nodiscard]] std::vector<float> Kept() const override { return lost; }
    void Restore(std::span<const float> kept) override {
      if (kept.size() != lost.size()) throw Error("another number of values");
      lost.assign(kept.begin(), kept.end());
    }
    std::int64_t begin = 0;
    std::vector<float> lost, next;
  };

  [[nodiscard]] bool has_own_scales() const { return options_.measured == Measured::nothing; }
  [[nodiscard]] std::int64_t Touched(std::int64_t n, std::int64_t before) const {
    return n == 0 ? 0 : (before + n - 1) / options_.bucket + 1;
  }
  [[nodiscard]] std::size_t Bucket(std::int64_t i, std::int64_t before) const {
    return static_cast<std::size_t>((before + i) / options_.bucket);
  }
  static float ValueOf(std::uint8_t code, float scale) {
    return code == 0 ? 0 : code == 1 ? scale : -scale;
  }
  static float Largest(std::span<const float> v, std::int64_t n) {
    float largest = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::fabs(v[static_cast<std::size_t>(i)]));
    }
    return largest;
  }
  /// Returns the values that the codec sends: the range's values plus the errors of the last call.
  static std::vector<float> Sent(const Piece& piece, const CodecState* state, const float* x) {
    const std::int64_t n = piece.n == 0 ? piece.size : piece.n;
    std::vector<float> v(static_cast<std::size_t>(n));
    Unscale(piece.shift, 1, n, x, v.data());
    if (state == nullptr) return v;
    const auto& kept = dynamic_cast<const Feedback&>(*state);
    for (std::int64_t i = 0; i < n; ++i) {
      v[static_cast<std::size_t>(i)] +=
          kept.lost[static_cast<std::size_t>(piece.begin - kept.begin + i)];
    }
    return v;
  }

  Options options_;
};

}  // namespace cpd::testing
