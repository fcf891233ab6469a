// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a layer: the sums of its three GEMMs, the casts of their operands, and the
// rounding of results.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/purpose.h"
#include "cpd/spec/scales_at.h"

namespace cpd {

/// Returns the names of all enumerators of ScalesAt, in the order of their values.
CPD_API std::span<const std::string_view> NamesOf(ScalesAt scales_at);

struct Recipe {
  /// The accumulator of products. None means `native`: the framework's own kernel computes the sum.
  using Sum = std::optional<Accumulator>;
  /// The format to which a tensor is cast. None: the tensor remains unconverted.
  using Cast = std::optional<CastSpec>;
  /// The cast of a tensor for one backward GEMM. None means `same`: the tensor's field activation,
  /// weight or gradient applies.
  using OwnCast = std::optional<Cast>;

  Sum forward{}, grad_input{}, grad_weight{}, grad_bias{};
  Cast activation{}, weight{}, gradient{};
  OwnCast grad_input_gradient{}, grad_input_weight{};
  OwnCast grad_weight_activation{}, grad_weight_gradient{};
  /// The casts of results, to formats without scales.
  Cast output{}, norm{}, softmax{}, embedding{}, residual{};
  ScalesAt scales_at = ScalesAt::operand;
};

/// Throws Error if a field is out of range, if a result's cast has scales, if two casts with a
/// `history` differ in `history` or `amax`, or if the sums do not support the operands' casts and
/// scales_at.
CPD_API void Check(const Recipe& recipe);

/// The keys of a recipe: `sums`, which sets the forward sum, then every field. Each value is a
/// text. The kinds of the keys (Key::kind) are `sums`, `sum`, `operand`, `override` (an operand of
/// one GEMM), `result` and `word`.
template <>
CPD_API Keys<Recipe> KeysOf<Recipe>();
/// Returns the canonical text, `native sums='h100-fp8 …' weight=mxfp8 output=bf16`: `native`, then
/// `name=value` for every field that differs from its default. Values of several words are in
/// quotes. `sums` is the forward sum, and the default of grad_input and grad_weight. The default of
/// grad_bias is `fp32 sequential`, or `native` if the forward sum is native. The default of
/// scales_at is `operand`, or for a matrix unit the place that the operands' blocks allow.
/// ParseRecipe(ToString(r)) equals r, except for seeds and streams.
CPD_API std::string ToString(const Recipe& recipe);
/// Reads a recipe: `native`, or the cast of all operands with its options, then `name=value` in any
/// order. The names are `sums` and the names of the fields. A sum may be any text of an
/// accumulator, for example only a format. Throws Error for any other text. For a text with
/// semicolons, as in version 0.7, the error has the equivalent text.
CPD_API Recipe ParseRecipe(std::string_view text);

/// A part of a recipe: a sum or an operand of the GEMMs. `purpose` is the purpose of its rounding,
/// and `field` the recipe's field for that rounding. For an operand, `tensor` is `activation`,
/// `weight` or `gradient`.
struct RecipePart {
  Purpose purpose{};
  std::string_view field{}, tensor{};
};
/// Returns all parts of a recipe: the four sums, then the six operands.
CPD_API std::vector<RecipePart> RecipeParts();

/// Returns the text of each rounding, indexed by the number of its purpose: the four sums, the
/// operands of the three GEMMs, and the output. The forward sum has the purpose `given`. A text is
/// empty if nothing is rounded for that purpose.
CPD_API std::array<std::string, kPurposes.size()> RoundingsOf(const Recipe& recipe);

/// Returns whether both GEMMs that use a tensor use the same cast of it, so that the tensor may be
/// cast once, before both GEMMs. `cast` is cast_activation or cast_weight.
CPD_API bool IsCastOnce(const Recipe& recipe, Purpose cast);

/// Returns the fields of the recipe that concern GEMMs: sums, operands and scales_at. If the caller
/// has already cast the activation or the weight, the result has no cast of that tensor.
CPD_API Recipe GemmsOf(Recipe recipe, bool activation_is_cast, bool weight_is_cast);

}  // namespace cpd
