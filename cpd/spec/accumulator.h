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
  fixed,       ///< an integer of so many bits, in steps of 2^-fraction (FixedPoint)
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
  /// block_fma: the unit. Its products are exact. `format` and `rounding` apply to promotion and to
  /// the result.
  std::optional<BlockFma> unit{};
  std::optional<FixedPoint> fixed{};  ///< fixed: the integer; its terms' products are exact
};

CPD_API std::span<const std::string_view> NamesOf(Scheme scheme);
/// Returns the names of all schemes that an accumulator can be made with, including `fma`.
CPD_API std::span<const std::string_view> SchemeNames();
/// Returns the names of the schemes that sums of given terms can have.
CPD_API std::span<const std::string_view> SumSchemeNames();

/// Throws Error if a field is out of range or not of its type, or if fields do not fit together.
/// The text gives the value and the allowed ones.
CPD_API void Check(const Accumulator& accumulator);

/// The canonical text, `e6m9 chunked chunk=64 product=exact rounding=stochastic random_bits=8`:
/// format, scheme, then every option that is not its default. ParseAccumulator(ToString(a)) is a.
CPD_API std::string ToString(const Accumulator& accumulator);
/// Reads a text: a format, a scheme (default: sequential) and options, in which `fma` is the scheme
/// sequential with exact products. The name of a matrix unit or an integer may stand for the
/// scheme, and then the format may be left out: `h100-fp8 a=e5m2`, `fp16 v100`, `fixed<40,12>`.
/// Keys of a unit or of an integer alone name that form: `a=fp16 b=fp16 block=4`. Options `format`
/// and `scheme` replace those words.
CPD_API Accumulator ParseAccumulator(std::string_view text);
template <>
CPD_API Accumulator Make<Accumulator>(std::string_view text, std::span<const Option> keys);
/// `form` (`ordered`, `unit` or `integer`), then every key of a text. `product`, of the kind
/// `product`, is a format's text or `exact`; `inner` is the effective format.
template <>
CPD_API Keys<Accumulator> KeysOf<Accumulator>();

/// The sum of a product's transpose: a unit's a and b change places.
CPD_API Accumulator Swapped(Accumulator accumulator);
/// Returns the same sum for terms that are not products: only the additions round them.
CPD_API Accumulator OfTerms(Accumulator accumulator);

}  // namespace cpd
