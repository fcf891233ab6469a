// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cpd/spec/block_fma.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

enum class Scheme : std::uint8_t {
  sequential,  ///< s = round(s + x)
  kahan,       ///< y = x - c; t = s + y; c = (t - s) - y; s = t; each operation rounded
  chunked,     ///< sequential within each chunk of terms, from +0; then sequential over the chunks
  pairwise,    ///< a tree: neighbors first, an odd one passes up; then s = round(s + tree)
  block_fma,   ///< aligned and truncated block by block, as matrix units do (BlockFma)
  fixed,       ///< an integer of a fixed width, in steps of 2^-fraction (FixedPoint)
};

/// The arithmetic of a sum: its format, its scheme, and the rounding of each of its operations. The
/// fields from `product` on are for products that Gemm sums.
struct Accumulator {
  Format format = kFp32;
  Scheme scheme = Scheme::sequential;
  RoundingOptions rounding{};

  /// The format into which each product is first rounded. Default: `format`.
  std::optional<Format> product{};
  bool exact_products = false;    ///< products are exact: one rounding per step (fma)
  std::optional<Format> inner{};  ///< chunked: the format within a chunk; default: `format`
  std::int64_t chunk = 64;        ///< chunked: terms per chunk
  /// For block_fma: the matrix unit, whose products are exact. `format` and `rounding` then apply
  /// to promotion and to the result.
  std::optional<BlockFma> unit{};
  std::optional<FixedPoint> fixed{};  ///< fixed: the integer; its terms' products are exact
};

CPD_API std::span<const std::string_view> NamesOf(Scheme scheme);
/// Returns the names of all schemes that an accumulator can be made with, including `fma`.
CPD_API std::span<const std::string_view> SchemeNames();
/// Returns the names of the schemes that sums of terms (not products) can have.
CPD_API std::span<const std::string_view> SumSchemeNames();

/// Throws Error if a field is out of range or not of its type, or if the values of two fields
/// exclude each other. The error's message has the value and the allowed values.
CPD_API void Check(const Accumulator& accumulator);

/// Returns the canonical text, `e6m9 chunked chunk=64 product=exact rounding=stochastic
/// random_bits=8`: the format, the scheme, then every option that differs from its default.
/// ParseAccumulator(ToString(a)) equals a.
CPD_API std::string ToString(const Accumulator& accumulator);
/// Reads a text: a format, a scheme (default: sequential) and options. `fma` stands for the scheme
/// sequential with exact products. The name of a matrix unit or of an integer may stand in place of
/// the scheme; then the format may be left out: `h100-fp8 a=e5m2`, `fp16 v100`, `fixed<40,12>`.
/// Keys that only a matrix unit or an integer has also determine the scheme: `a=fp16 b=fp16
/// block=4`. The options `format` and `scheme` replace the words for format and scheme. Throws
/// Error for any other text.
CPD_API Accumulator ParseAccumulator(std::string_view text);
template <>
CPD_API Accumulator Make<Accumulator>(std::string_view text, std::span<const Option> keys);
/// The keys of an accumulator: `form` (`ordered`, `unit` or `integer`), then every key that the
/// text of an accumulator may have. The value of the key `product` is the text of a format or
/// `exact`, and the kind of this key (Key::kind) is `product`. The value of `inner` is the inner
/// format that applies, also if the field is not set.
template <>
CPD_API Keys<Accumulator> KeysOf<Accumulator>();

/// Returns the accumulator for the transposed matrix product: the operand formats a and b of a
/// matrix unit are exchanged.
CPD_API Accumulator Swapped(Accumulator accumulator);
/// Returns the accumulator for sums of terms that are not products: without a product format, so
/// that an ordered sum rounds only its additions.
CPD_API Accumulator OfTerms(Accumulator accumulator);

}  // namespace cpd
