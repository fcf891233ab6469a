// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats, whose numbers share scales. A scaled format has an element format and one or two
// levels of scale. A value is
//   element * scale of its block (* scale of its tensor or row).
// A scale is the factor by which an element is multiplied to get its value. Each level has a
// format, and the level's scales are numbers of that format.
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

/// The shape of the blocks: it determines which elements share a scale.
struct BlockShape {
  enum class Kind : std::uint8_t {
    tensor,  ///< all elements share a scale
    row,     ///< all elements along the axis share a scale
    tile,    ///< `columns` along the axis times `rows` along the other dimension
  };
  Kind kind = Kind::tile;
  std::int64_t rows = 1;
  std::int64_t columns = 32;

  bool operator==(const BlockShape&) const = default;
};

/// The rule by which a block's scale follows from A, the largest |x| of the block. M is the element
/// format's max, and emax is the exponent of M. If there is an outer scale, A is first divided by
/// it, exactly.
enum class ScaleRule : std::uint8_t {
  floor,     ///< 2^(floor(log2 A) - emax): OCP MX 1.0, section 6.3
  ceil,      ///< 2^(ceil(log2 A) - emax)
  rceil,     ///< 2^ceil(log2(A / M)): nothing saturates
  even,      ///< as floor, after A is rounded half up to the element format's mantissa bits
  max,       ///< A / M, rounded to nearest-even into the scale's format
  max_pow2,  ///< the multiplier M / A rounded down to a power of two, inverted
  up,        ///< A / M, rounded up into the scale's format
};

/// The order of operations and roundings by which scales and elements are computed: exact, or as in
/// a library. The libraries compute in binary32.
enum class Arithmetic : std::uint8_t {
  exact,         ///< exact quotients, each rounded once
  te,            ///< NVIDIA/TransformerEngine's CUDA kernels
  torchao,       ///< pytorch/ao
  deepgemm,      ///< deepseek-ai/DeepGEMM
  microxcaling,  ///< microsoft/microxcaling, by the logarithm of its shared exponents
};

/// The effect of a NaN or an infinity on its block.
enum class NonFinite : std::uint8_t {
  /// If a block contains a NaN or an infinity, its scale and all its values become NaN. There are
  /// two exceptions: arithmetic `torchao` with scales in a format other than e8m0, and arithmetic
  /// `deepgemm`. Both compute the block's scale by the same operations as for finite values.
  block,
  element,  ///< NaN does not count for A and remains NaN; an infinity saturates
};

/// Chooses between two candidates for a block's scale ("4 over 6"). The candidates map the block's
/// largest |x| to the element format's max, or to max / 1.5. The candidate with the smaller sum of
/// errors is used, and the first candidate if the sums are equal.
enum class ScaleChoice : std::uint8_t { none, mae, mse };

struct Scaled {
  Format element{};
  BlockShape block{};
  Format scale = kE8m0;
  ScaleRule rule = ScaleRule::floor;
  std::optional<Format> tensor_scale{};  ///< the outer scale's format; none: one level of scales
  /// The shape of the elements that share an outer scale: the tensor, or a row.
  BlockShape::Kind outer = BlockShape::Kind::tensor;
  Arithmetic arithmetic = Arithmetic::exact;
  int margin = 0;  ///< scales are 2^margin times as large, -64…64
  NonFinite non_finite = NonFinite::block;
  ScaleChoice choose = ScaleChoice::none;
  /// If there are outer scales, they are chosen so that the block with the largest |x| has this
  /// scale. Default: the max of the scale's format.
  float scale_max = 0;
  /// A transform of the inputs along the axis, before scales are computed. The values of the result
  /// remain transformed.
  std::optional<Hadamard> transform{};

  bool operator==(const Scaled&) const = default;
};

/// Returns the default of `rule` for scales in the format `scale`: `floor` for e8m0, else `max`.
CPD_API ScaleRule DefaultRule(const Format& scale);
/// Returns the default of `non_finite` for an arithmetic: `element` for te, else `block`.
CPD_API NonFinite DefaultNonFinite(Arithmetic arithmetic);

/// Throws Error if a field is out of range, or if an arithmetic does not support the scales. Every
/// function that takes a Scaled first calls Check.
CPD_API void Check(const Scaled& scaled);

/// Returns the extents of the grid of blocks of a tensor. The extents are the tensor's shape,
/// divided along the axis by the columns of a block, and along the other dimension by its rows,
/// rounded up. An extent that a block covers becomes 1. If the whole tensor is one block
/// (BlockShape::Kind::tensor), the result is empty. The other dimension is the last one, or the one
/// before the last if the axis is the last. Throws Error if there is no such axis; a negative axis
/// counts from the end.
CPD_API std::vector<std::int64_t> ScaleGrid(const BlockShape& block,
                                            std::span<const std::int64_t> shape, int axis);

/// Return the names of all enumerators of the argument's type, in the order of their values.
CPD_API std::span<const std::string_view> NamesOf(ScaleRule rule);
CPD_API std::span<const std::string_view> NamesOf(Arithmetic arithmetic);
CPD_API std::span<const std::string_view> NamesOf(NonFinite non_finite);
CPD_API std::span<const std::string_view> NamesOf(ScaleChoice choose);
/// Read and write the text of a block: `tensor`, `row`, `32`, `128x128`.
CPD_API BlockShape ParseBlockShape(std::string_view text);
CPD_API std::string ToString(const BlockShape& block);

/// Reads a named format with options: `mxfp8`, `nvfp4 scale_max=256 choose=mae`, `int8 row`,
/// `fp8-block 128x128`; or an element format with its block and options, `e4m3fn 1x128 scale=fp32`.
/// If a block has no format for its scale, the format is e8m0. Throws Error for any other text.
CPD_API Scaled ParseScaled(std::string_view text);
/// Makes a scaled format from a text and keys that replace its options. The text may be empty if
/// `element` is among the keys.
template <>
CPD_API Scaled Make<Scaled>(std::string_view text, std::span<const Option> keys);
/// Returns the canonical text. ParseScaled(ToString(s)) == s.
CPD_API std::string ToString(const Scaled& scaled);
template <>
CPD_API Keys<Scaled> KeysOf<Scaled>();
/// Returns the scaled formats that have a name. Their evidence is `standard` or `library`.
CPD_API std::vector<NamedSpec> NamedScaledFormats();
/// Returns whether a text can only be meant for ParseScaled: it is the name of a scaled format, or
/// has more than one word.
CPD_API bool NamesScaled(std::string_view text);

/// Returns whether a word can only be meant as the text of a block (ParseBlockShape).
bool IsBlockWord(std::string_view word);

/// Returns the average number of bits of a value in a tensor of this shape, counting codes and all
/// scales.
CPD_API double BitsPerValue(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

}  // namespace cpd
