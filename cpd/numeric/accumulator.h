// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/numeric/format.h"
#include "cpd/numeric/rounding.h"

namespace cpd {

enum class Scheme : std::uint8_t {
  sequential,  ///< s = round(s + x)
  kahan,       ///< y = x - c; t = s + y; c = (t - s) - y; s = t; each operation rounded
  chunked,     ///< sequential within each chunk of terms, from +0; then sequential over the chunks
  pairwise,    ///< a tree: neighbours first, an odd one passes up; then s = round(s + tree)
  block_fma,   ///< aligned and truncated block by block, as matrix units do (BlockFma)
  fixed,       ///< an integer of so many bits, in steps of 2^-fraction (FixedPoint)
};

/// A sum kept in a two's complement integer of `width` bits, in units of 2^-fraction: hardware's
/// int32, or Kulisch's accumulator. Every term, a product exact, is rounded once to whole units,
/// and integers are added; the sum is at last rounded once into the accumulator's format. Sums
/// wrap: they are right modulo 2^width, in whatever order. Where the accumulator's overflow is
/// `saturate`, a sum beyond the range is its nearest end, after each term.
struct FixedPoint {
  int width = 32;                             ///< bits, 2…1024
  int fraction = 0;                           ///< the unit is 2^-fraction; -1024…1024
  Rounding rounding = Rounding::toward_zero;  ///< of terms to units; down is two's complement's cut

  bool operator==(const FixedPoint&) const = default;
};

/// How a matrix unit adds one block's products and its running sum.
enum class Adder : std::uint8_t {
  aligned,         ///< every term is cut below the greatest exponent (BlockFma)
  exact,           ///< the exact sum of the products and the addend, rounded once (CDNA1)
  flushed_pairs,   ///< binary32 without subnormals: ((p0 + p1) + (p2 + p3)) + addend (CDNA2)
  two_steps,       ///< cut products are summed first, then the addend is aligned to that (CDNA3)
  two_steps_even,  ///< the same of even and of odd k apart (CDNA3's FP8)
};

/// The rule of a matrix unit ("block FMA with truncated alignment"). Per block of products: each is
/// exact, with the exponent ea + eb of its operands (not normalised; subnormals keep emin); E is
/// the greatest of them, of the addend's (if aligned) and of min_exponent; every term is cut toward
/// zero to fraction_bits below 2^E; the sum of the cut terms is exact and rounded once into `sum`;
/// beyond the range of `sum` it is Inf where that has Inf, also toward zero (adder aligned).
///
/// A unit with scales multiplies each product by its two scales' magnitudes, exactly; a product's
/// exponent is then ea + eb + e(scale of a) + e(scale of b). With dot > 1 the terms are instead the
/// exact sums of so many scaled products, and a term's exponent is that of the scales alone. A term
/// that is zero has none; a scale that is NaN makes the sum NaN. k is ascending, the adder aligned.
struct BlockFma {
  Format a{}, b{};            ///< what the operands hold: their emin decides exponents
  int block = 16;             ///< products per block, 1…64
  int fraction_bits = 25;     ///< F, 1…30; with scales as far as binary64 holds a block's sum
  bool aligns_addend = true;  ///< the running sum is one of the aligned terms; else it is added
                              ///< exactly to the block's sum, before the one rounding
  int min_exponent = -133;    ///< E is at least this
  Format sum{};               ///< of the unit's running sum
  Rounding rounding = Rounding::toward_zero;  ///< into `sum`: toward_zero or nearest_even
  std::int64_t promote = 0;  ///< every so many k (a multiple of `block`) the unit's sum is added to
                             ///< the accumulator and starts anew from +0; 0: never
  std::optional<Format> scale{};  ///< of the scales (GemmScaled); none: the unit takes none
  int scale_block = 32;           ///< values of k that share a scale: `block` or a divisor of it
  int dot = 1;                    ///< products that are one term, a divisor of scale_block
  Adder adder = Adder::aligned;
  /// The order of k: within each `group` of k, a multiple of `block`, first come those with k mod
  /// stride < take, then the next `take`, and so on, each ascending. 0: ascending. Blocks are of
  /// successive k in that order.
  int group = 0;
  int stride = 4;
  int take = 2;

  bool operator==(const BlockFma&) const = default;
};

/// An ordered sum: its format, its scheme, and how each of its operations is rounded. The fields
/// from `product` on are for products summed by Gemm.
struct Accumulator {
  Format format = kFp32;
  Scheme scheme = Scheme::sequential;
  RoundingOptions rounding{};

  std::optional<Format> product{};  ///< each product is first rounded into it; default: `format`
  bool exact_products = false;      ///< products are exact: one rounding per step (fma)
  std::optional<Format> inner{};    ///< chunked: the format within a chunk; default: `format`
  std::int64_t chunk = 64;          ///< chunked: terms per chunk
  /// block_fma: the unit. Its products are exact; `format` and `rounding` are those of promotion
  /// and of the result.
  std::optional<BlockFma> unit{};
  std::optional<FixedPoint> fixed{};  ///< fixed: the integer; its terms' products are exact
};

CPD_API Scheme ParseScheme(std::string_view name);
CPD_API std::string ToString(Scheme scheme);

/// Throws Error where a field is out of range or none of its type's, or where fields do not fit
/// together: what is given and what is allowed.
CPD_API void Check(const Accumulator& accumulator, bool on_gpu = false);

/// The canonical text, `e6m9 chunked chunk=64 product=exact rounding=stochastic random_bits=8`:
/// format, scheme, then every option that is not its default; seed and stream are left out.
/// ParseAccumulator(ToString(a)) gives a, but for seed and stream.
CPD_API std::string ToString(const Accumulator& accumulator);
/// Also takes the scheme `fma`, sequential with exact products, and a preset with options,
/// `h100-fp8 a=e5m2`.
CPD_API Accumulator ParseAccumulator(std::string_view text);

/// A matrix unit by name (`v100`, `a100`, `h100-fp8`, …) with fp32 or fp16 output: an Accumulator
/// of Scheme::block_fma. Throws Error for a name that is not known, and for results in a format
/// for which the unit has no known rule.
CPD_API Accumulator Preset(std::string_view name, const Format& output = kFp32);

/// What a preset stands on.
struct PresetInfo {
  std::string name;
  std::string evidence;  ///< `replayed` (against published results of the unit) or `literature`
  std::string source;
};
CPD_API std::vector<PresetInfo> Presets();

}  // namespace cpd
