// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/paths.h"

#include "cpd/base/plans.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/spec/block_fma.h"

namespace cpd {
namespace {

const char* NameOf(Form form) {
  switch (form) {
    case Form::addition:
    case Form::general_addition:
      return "addition";
    case Form::in_place:
      return "in_place";
    case Form::scaled:
      return "units";
    case Form::integer:
      return "integer";
    default:
      return "general";
  }
}

std::string TextOf(NoForm why, const RoundingOptions& options) {
  switch (why) {
    case NoForm::has_one:
      return "";
    case NoForm::wide:
      return "the format exceeds binary32's normal range, so that it is rounded from binary64";
    case NoForm::mode:
      return "rounding " + ToString(options.mode) + " has no shorter form here";
    case NoForm::variant:
      return "variants B and C of stochastic rounding have no shorter form";
    case NoForm::special_values:
      return "zeros, subnormals, signs or overflow of the format are not as in IEEE 754";
    case NoForm::exponents:
      return "with binary32's exponents only nearest_even and stochastic rounding of formats with "
             "IEEE 754's special values are rounded in place";
    case NoForm::random_bits:
      return "the mantissa and the random bits are more bits than an int32 has";
    case NoForm::range:
      return "the mantissa or the largest value leaves a binary32 addition no room";
  }
  return "";
}

std::string NameOf(Split kind, Half half = Half::none) {
  switch (kind) {
    case Split::none:
      return "general";
    case Split::plain:
      return "binary32";
    case Split::plain_kahan:
      return "binary32_kahan";
    case Split::plain_tree:
      return "binary32_pairwise";
    case Split::rounded:
      if (half == Half::fp16) return "veltkamp_fp16";
      return half == Half::bf16 ? "veltkamp_bf16" : "veltkamp";
    case Split::exact:
      return "veltkamp_exact";
    case Split::kahan:
      return "veltkamp_kahan";
    case Split::tree:
      return "veltkamp_pairwise";
    case Split::stochastic:
      return "stochastic";
    case Split::powers:
      return "powers_of_two";
    case Split::exact_powers:
      return "powers_of_two_exact";
  }
  return "general";
}

std::string TextOf(NoSplit why, const RoundingOptions& options) {
  switch (why) {
    case NoSplit::has_one:
      return "";
    case NoSplit::mode:
      return "sums rounded " + ToString(options.mode) + " have no short path";
    case NoSplit::variant:
      return "sums with variants B and C of stochastic rounding have no short path";
    case NoSplit::exact_products:
      return "exact products have a short path in sequential and chunked sums alone";
    case NoSplit::special_values:
      return "a format without sign, zero or subnormals, or beyond binary32's range, has no short "
             "path";
    case NoSplit::grid:
      return "the products' least spacing is below the sums'";
    case NoSplit::precision:
      return "the sums have more significant bits than binary32's additions round exactly";
    case NoSplit::powers:
      return "pairwise sums of formats without mantissa have no short path";
  }
  return "";
}

constexpr const char* kGiven = "the caller gives the random integers";
constexpr const char* kOneLane = "kernels of one lane have no short path";

Path UnitPath(const BlockFma& unit) {
  if (unit.scale) return {"unit_scaled", "a matrix unit that takes scales"};
  switch (unit.adder) {
    case Adder::exact:
      return {"unit_exact", "the unit's adder"};
    case Adder::flushed_pairs:
      return {"unit_flushed_pairs", "the unit's adder"};
    case Adder::two_steps:
    case Adder::two_steps_even:
      return {"unit_two_steps", "the unit's adder"};
    default:
      return {"unit_aligned",
              "in binary32 where a tile's products lie close enough, else in binary64: the values "
              "decide"};
  }
}

}  // namespace

Path PathOf(const Format& format, const RoundingOptions& options, bool binary64) {
  const RoundPlan plan = PlanOf(format, options);
  if (binary64) return {"general", "values of binary64 have no shorter form"};
  return {NameOf(plan.form), TextOf(choose_form(plan, format).why, options)};
}

Path PathOf(const Accumulator& accumulator, const GemmPath& path, int lanes, bool given) {
  if (accumulator.unit) return UnitPath(*accumulator.unit);
  if (accumulator.scheme == Scheme::fixed) return {"integer", ""};
  if (path.kind == Split::stochastic) {
    return {NameOf(path.kind),
            "in lanes of binary32 or binary64, and the general path for NaN and "
            "infinities: the values decide"};
  }
  if (is_binary32(path.kind)) return {NameOf(path.kind), ""};
  if (path.kind != Split::none) {
    std::string why = "while no sum can leave the format's range, else general: the values decide";
    if (path.wants_binary32) why += ", as they do whether all products are binary32 numbers";
    return {NameOf(path.kind, path.half), why};
  }
  if (given) return {"general", kGiven};
  const InnerSum inner = inner_sum(accumulator);
  const RoundingOptions& rounding = accumulator.rounding;
  const NoSplit why =
      choose_split(inner.scheme, inner.product, accumulator.exact_products, inner.sum, rounding,
                   PlanOf(inner.product, rounding), PlanOf(inner.sum, rounding))
          .why;
  if (why == NoSplit::has_one) return {"general", lanes == 1 ? kOneLane : "no kernel for it"};
  return {"general", TextOf(why, rounding)};
}

Path PathOfTerms(const Accumulator& accumulator, Split kind, int lanes, bool given) {
  if (accumulator.scheme == Scheme::fixed) return {"integer", ""};
  if (kind == Split::stochastic || kind == Split::plain) return {NameOf(kind), ""};
  if (kind != Split::none) {
    return {NameOf(kind),
            "while no sum leaves the format's range, else general: the values decide"};
  }
  if (given) return {"general", kGiven};
  if (lanes == 1) return {"general", kOneLane};
  return {"general", "the format, its rounding or the scheme has no short sum"};
}

Path PathOf(const ScaledPlan& plan, ElementRoute route, bool powers) {
  const bool decides = route != ElementRoute::wide && plan.arithmetic == Arithmetic::exact;
  std::string why =
      decides ? "blocks with scales near the ends of binary32's range are rounded from binary64: "
                "the values decide"
              : "";
  if (powers) return {"powers_of_two", "blocks with unusual scales take the path of others"};
  switch (route) {
    case ElementRoute::multiply:
      return {"multiply", why};
    case ElementRoute::divide:
      return {"divide", why};
    case ElementRoute::wide:
      return {"general", "quotients by these scales need binary64"};
  }
  return {};
}

}  // namespace cpd
