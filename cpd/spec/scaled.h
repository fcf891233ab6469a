// SPDX-License-Identifier: Apache-2.0
//
// Scaled: numbers that share scales. An element format and one or two levels of scale; a value is
//   element * scale of its block (* scale of its tensor or row).
// A scale is the factor that decodes, and a number of the level's own format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/format.h"
#include "cpd/spec/hadamard.h"
#include "cpd/spec/names.h"

namespace cpd {

/// Which elements share a scale.
struct BlockShape {
  enum class Kind : std::uint8_t {
    tensor,  ///< all of them
    row,     ///< all along the axis
    tile,    ///< `columns` along the axis times `rows` along the other dimension
  };
  Kind kind = Kind::tile;
  std::int64_t rows = 1;
  std::int64_t columns = 32;

  bool operator==(const BlockShape&) const = default;
};

/// The rule by which a block's scale follows from A, its largest |x|. M is the element format's
/// max, emax M's exponent; under a second level A is divided by that level's scale first, exactly.
enum class ScaleRule : std::uint8_t {
  floor,     ///< 2^(floor(log2 A) - emax): OCP MX 1.0, section 6.3
  ceil,      ///< 2^(ceil(log2 A) - emax)
  rceil,     ///< 2^ceil(log2(A / M)): nothing saturates
  even,      ///< floor's, of A rounded half up to the element format's mantissa bits
  max,       ///< A / M, rounded to nearest-even into the scale's format
  max_pow2,  ///< the multiplier M / A rounded down to a power of two, inverted
  up,        ///< A / M, rounded up into the scale's format
};

/// Whose order of operations and roundings makes scales and elements. Theirs are binary32.
enum class Arithmetic : std::uint8_t {
  exact,         ///< exact quotients, each rounded once
  te,            ///< NVIDIA/TransformerEngine's CUDA kernels
  torchao,       ///< pytorch/ao
  deepgemm,      ///< deepseek-ai/DeepGEMM
  microxcaling,  ///< microsoft/microxcaling, of which the shared exponent's logarithm is taken
};

/// The effect of a NaN or an infinity on its block.
enum class NonFinite : std::uint8_t {
  /// The scale is NaN, and so is every value; in torchao's (but for e8m0) and DeepGEMM's arithmetic
  /// what their steps make of it.
  block,
  element,  ///< A leaves out NaN, which stay NaN; an infinity saturates
};

/// Two candidates for a block's scale, A mapped to M and to M / 1.5 ('4 over 6'): the one with the
/// smaller sum of errors wins, of equals the first.
enum class ScaleChoice : std::uint8_t { none, mae, mse };

struct Scaled {
  Format element{};
  BlockShape block{};
  Format scale = kE8m0;
  ScaleRule rule = ScaleRule::floor;
  std::optional<Format> tensor_scale{};  ///< the second level's format; none: one level
  BlockShape::Kind outer = BlockShape::Kind::tensor;  ///< of the second level: tensor or row
  Arithmetic arithmetic = Arithmetic::exact;
  int margin = 0;  ///< scales are 2^margin times as large, -64…64
  NonFinite non_finite = NonFinite::block;
  ScaleChoice choose = ScaleChoice::none;
  /// Two levels: the scale that the block of the largest |x| gets. Default: the scale format's max.
  float scale_max = 0;
  /// Of the inputs along the axis, before anything else; values come out transformed.
  std::optional<Hadamard> transform{};

  bool operator==(const Scaled&) const = default;
};

/// `floor` for e8m0, else `max`.
CPD_API ScaleRule DefaultRule(const Format& scale);
/// `element` for te, else `block`.
CPD_API NonFinite DefaultNonFinite(Arithmetic arithmetic);

/// Throws Error where a field is out of range or an arithmetic has no such scales. Every function
/// that takes a Scaled calls it first.
CPD_API void Check(const Scaled& scaled);

/// Extents of the grid of blocks of a tensor: its shape, divided along the axis by the block's
/// columns and along the other dimension by its rows, rounded up; 1 for a whole extent; of `tensor`
/// no extents at all. The other dimension is the last or, where that is the axis, the one before.
/// Throws Error where there is no such axis; negative ones count from the end.
CPD_API std::vector<std::int64_t> ScaleGrid(const BlockShape& block,
                                            std::span<const std::int64_t> shape, int axis);

/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> NamesOf(ScaleRule rule);
CPD_API std::span<const std::string_view> NamesOf(Arithmetic arithmetic);
CPD_API std::span<const std::string_view> NamesOf(NonFinite non_finite);
CPD_API std::span<const std::string_view> NamesOf(ScaleChoice choose);
/// `tensor`, `row`, `32`, `128x128`.
CPD_API BlockShape ParseBlockShape(std::string_view text);
CPD_API std::string ToString(const BlockShape& block);

/// A named format, with options: `mxfp8`, `nvfp4 scale_max=256 choose=mae`, `int8 row`,
/// `fp8-block 128x128`; or an element format with its block and options, `e4m3fn 1x128 scale=fp32`.
/// A block without a scale's format has e8m0. Throws Error.
CPD_API Scaled ParseScaled(std::string_view text);
/// With `element` among the keys the text may be empty.
template <>
CPD_API Scaled Make<Scaled>(std::string_view text, std::span<const Option> keys);
/// The canonical text; ParseScaled(ToString(s)) == s.
CPD_API std::string ToString(const Scaled& scaled);
template <>
CPD_API Keys<Scaled> KeysOf<Scaled>();
/// The scaled formats that stand by a name alone. Evidence is `standard` or `library`.
CPD_API std::vector<NamedSpec> NamedScaledFormats();
/// Returns whether a text can only be meant for ParseScaled: a name of one, or more than one word.
CPD_API bool NamesScaled(std::string_view text);

/// Returns whether a word can only be meant for ParseBlockShape.
bool IsBlockWord(std::string_view word);

/// Bits a value takes in a tensor of so many: codes and all scales.
CPD_API double BitsPerValue(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

}  // namespace cpd
