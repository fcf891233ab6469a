// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a layer: the sums of its three GEMMs, what their operands are cast to, and what
// results are rounded to.
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

/// All names, each at its enumerator's place.
CPD_API std::span<const std::string_view> NamesOf(ScalesAt scales_at);

struct Recipe {
  /// The accumulator of products; none: `native`, by the framework's own kernel.
  using Sum = std::optional<Accumulator>;
  /// The format that a tensor is cast to; none: the tensor remains unconverted.
  using Cast = std::optional<CastSpec>;
  /// The same in one backward GEMM; none: `same`, as the tensor is cast elsewhere.
  using OwnCast = std::optional<Cast>;

  Sum forward{}, grad_input{}, grad_weight{}, grad_bias{};
  Cast activation{}, weight{}, gradient{};
  OwnCast grad_input_gradient{}, grad_input_weight{};
  OwnCast grad_weight_activation{}, grad_weight_gradient{};
  /// Results: formats without scales.
  Cast output{}, norm{}, softmax{}, embedding{}, residual{};
  ScalesAt scales_at = ScalesAt::operand;
};

/// Throws Error where casts or scales do not go together, or with the sums.
CPD_API void Check(const Recipe& recipe);

/// `sums`, which is the forward sum, then every field. Each value is a text; kinds are `sums`,
/// `sum`, `operand`, `override` (an operand of one GEMM), `result` and `word`.
template <>
CPD_API Keys<Recipe> KeysOf<Recipe>();
/// The canonical text, `native sums='h100-fp8 …' weight=mxfp8 output=bf16`: `native`, then
/// `name=value` for every field that is not its default, values of several words in quotes. `sums`
/// is the forward sum, which is the default of grad_input and grad_weight; that of grad_bias is
/// `fp32 sequential`, or `native` where the forward sum is; that of scales_at `operand`, or for a
/// matrix unit what the blocks of the operands allow. ParseRecipe(ToString(r)) gives r, but for
/// seeds and streams.
CPD_API std::string ToString(const Recipe& recipe);
/// The recipe of a text: `native`, or the cast of all operands and its options, then `name=value`
/// in any order, the names being `sums` and those of the fields. A sum may be whatever makes an
/// accumulator alone: a format, say. Throws Error, for semicolons, which version 0.7 had, with the
/// text that says the same now.
CPD_API Recipe ParseRecipe(std::string_view text);

/// A sum or an operand of the GEMMs: what its rounding is for, and the field that says how it
/// rounds; of an operand which tensor it is: `activation`, `weight` or `gradient`.
struct RecipePart {
  Purpose purpose{};
  std::string_view field{}, tensor{};
};
/// The four sums, then the six operands.
CPD_API std::vector<RecipePart> RecipeParts();

/// The texts of what rounds, by its purpose's number: of the four sums (`given` is the forward
/// one), of the operands of the three GEMMs, of the output; empty where nothing does.
CPD_API std::array<std::string, kPurposes.size()> RoundingsOf(const Recipe& recipe);

/// Returns whether one cast of a tensor serves both GEMMs that it enters, so that it may be cast
/// before them: cast_activation or cast_weight.
CPD_API bool IsCastOnce(const Recipe& recipe, Purpose cast);

/// The recipe's fields that concern GEMMs: sums, operands and scales_at. Leaves out the cast of the
/// activation or of the weight if the caller has cast it already.
CPD_API Recipe GemmsOf(Recipe recipe, bool activation_is_cast, bool weight_is_cast);

}  // namespace cpd
