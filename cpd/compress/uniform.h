// SPDX-License-Identifier: Apache-2.0
//
// Sends weights in uniform bins with entropy coding (Øland and Raj 2015, "Reducing Communication
// Overhead in Distributed Learning by an Order of Magnitude (Almost)"). In the paper, workers
// exchange weights, which are then averaged.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// The rule that determines the number of bits N for a layer: the layer has 2^N bins.
struct UniformBits {
  enum class Rule : std::uint8_t {
    fixed,
    /// N, the number of bits, is floor(H + c + 1/2), limited to 1…30. H is the entropy, in bits, of
    /// a sample of the values, divided into 2^sample bins. The sample begins at a randomly chosen
    /// value, and consists of every floor(1/fraction)-th value from there on.
    entropy,
    /// N, the number of bits, is floor(log2(G + c0) + c1 + 1/2), limited to 1…30. G is the root
    /// mean square of the layer's gradient (CodecState::SetGradient), in the units of the gradient.
    /// The shift of the values does not change G.
    gradient,
  };
  Rule rule = Rule::entropy;
  int bits = 8;  ///< fixed: 1…30
  double c = 6;
  int sample = 4;
  double fraction = 0.03;
  double c0 = 1, c1 = 8;
};

/// The least value, the greatest value and the number of bits of a layer, from Begin to Commit.
class CPD_API UniformState final : public CodecState {
 public:
  UniformState(const UniformBits& rule, const RoundingOptions& random);

  void SetGradient(float rms) override { gradient_ = rms; }
  /// Throws Error if the number of bits depends on the gradient and SetGradient was not called.
  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override;
  void Commit() override {}
  [[nodiscard]] std::optional<int> ChosenBits() const override { return bits_; }

  [[nodiscard]] float least() const { return least_; }
  [[nodiscard]] float greatest() const { return greatest_; }
  [[nodiscard]] int bits() const { return bits_; }

 private:
  [[nodiscard]] double Entropy(const Piece& layer, const float* x) const;
  [[nodiscard]] int ChooseBits(const Piece& layer, const float* x) const;

  UniformBits rule_;
  RoundingOptions random_;
  float gradient_ = -1;  // below 0: not set
  float least_ = 0, greatest_ = 0;
  int bits_ = 0;
};

/// Rounds values to 2^N bins of equal width, from a layer's least value to its greatest value. A
/// value becomes the center of its bin, rounded once to binary32
/// (cpd/numeric/scaled/uniform_bins.h). If all values of a layer are equal, there is one bin. NaN
/// and Inf do not count for the range. They have a separate bin, and become NaN.
///
/// A message consists of packages of up to 65,536 values. Each package can be decoded without the
/// others. Numbers are little-endian. A package begins with u16 count - 1, u8 N, u8 kind, f32
/// least, f32 greatest. Its kind determines the rest:
/// - kind 0: the bins, in N bits each;
/// - kind 1: u32 size; then, in `size` bytes, the table of a Huffman code (huffman.h) and the codes
///   of the first half of the bins, including the middle bin; then the codes of the other bins;
/// - kinds 2 and 3: as kinds 0 and 1, if some values are not finite. Such a value has bin
///   2^N, so kind 2 takes N + 1 bits.
/// The first bit is the most significant bit of its byte, and zeros fill the last byte.
/// coding=huffman uses the Huffman code if it is smaller.
///
/// Results::encoded: an owner encodes its sums again. Each 65,536 values of a layer then have their
/// own range and bits (Blockwise). In section 2 of the paper, the averaging worker also adapts the
/// meaning of the codes. Layers are cut into slices at multiples of 65,536 values.
class CPD_API Uniform final : public Codec {
 public:
  enum class Coding : std::uint8_t { huffman, fixed };
  enum class Results : std::uint8_t { exact, encoded };

  /// Throws Error if an option is out of range. Also throws Error if results are encoded with a
  /// number of bits that depends on a gradient, because no rank knows the gradient of a sum.
  explicit Uniform(const UniformBits& rule = {}, Coding coding = Coding::huffman,
                   const RoundingOptions& random = {}, Results results = Results::exact);
  static SharedCodec Make(CodecWords& words, const RoundingOptions& random);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override;
  [[nodiscard]] std::int64_t bucket() const override {
    return results_ == Results::encoded ? block() : 1;
  }
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] bool needs_gradient() const override {
    return rule_.rule == UniformBits::Rule::gradient;
  }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  /// A UniformState.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  [[nodiscard]] int MostBits() const;

  UniformBits rule_;
  Coding coding_;
  RoundingOptions random_;
  Results results_;
};

}  // namespace cpd
