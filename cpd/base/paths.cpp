// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/paths.h"

#include "cpd/base/fast_paths.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/fast/choose.h"
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

std::string NameOf(FastPath path) { return kFastPathNames[static_cast<int>(path)]; }

/// Returns the name of a path for sums of products. It ends with `_fp16` or `_bf16` if kernels
/// compute in 16-bit floats of that type. Otherwise it ends with `_kahan` or `_pairwise` for sums
/// of that scheme.
std::string NameOf(const GemmPath& path, Scheme scheme) {
  const std::string name = NameOf(path.path);
  if (path.half != Half::none) return name + (path.half == Half::fp16 ? "_fp16" : "_bf16");
  if (scheme == Scheme::kahan) return name + "_kahan";
  return name + (scheme == Scheme::pairwise ? "_pairwise" : "");
}

bool IsStochastic(FastPath path) {
  bool is_stochastic = false;
  with_path(path, [&]<class Path>() { is_stochastic = Path::kStochastic; });
  return is_stochastic;
}
/// Returns whether a path gives the right sum for any values, without bounds on them.
bool TakesAnyValues(FastPath path) {
  bool takes_any = false;
  with_path(path, [&]<class Path>() {
    if constexpr (Path::kTakesProducts) takes_any = Path::kAnyValues;
  });
  return takes_any;
}

std::string TextOf(NoPath why, const RoundingOptions& options) {
  switch (why) {
    case NoPath::has_one:
    case NoPath::other:
      return "";
    case NoPath::switched_off:
      return "CPD_FAST switches its fast path off";
    case NoPath::mode:
      return "sums rounded " + ToString(options.mode) + " have no fast path";
    case NoPath::variant:
      return "sums with variants B and C of stochastic rounding have no fast path";
    case NoPath::exact_products:
      return "exact products have a fast path in sequential and chunked sums alone";
    case NoPath::special_values:
      return "a format without sign, zero or subnormals, or beyond binary32's range, has no short "
             "path";
    case NoPath::grid:
      return "the products' least spacing is below the sums'";
    case NoPath::precision:
      return "the sums have more significant bits than binary32's additions round exactly";
    case NoPath::powers:
      return "pairwise sums of formats without mantissa have no fast path";
  }
  return "";
}

constexpr const char* kGiven = "the caller gives the random integers";
constexpr const char* kOneLane = "kernels of one lane have no fast path";

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
  if (IsStochastic(path.path)) {
    return {NameOf(path.path),
            "in lanes of binary32 or binary64, and the general path for NaN and "
            "infinities: the values decide"};
  }
  const InnerSum inner = inner_sum(accumulator);
  if (TakesAnyValues(path.path)) return {NameOf(path, inner.scheme), ""};
  if (path.path != FastPath::none) {
    std::string why = "while no sum can leave the format's range, else general: the values decide";
    if (path.wants_binary32) why += ", as they do whether all products are binary32 numbers";
    return {NameOf(path, inner.scheme), why};
  }
  if (given) return {"general", kGiven};
  const RoundingOptions& rounding = accumulator.rounding;
  const ProductsAsked asked{inner.scheme,
                            inner.product,
                            accumulator.exact_products,
                            inner.sum,
                            rounding,
                            PlanOf(inner.product, rounding),
                            PlanOf(inner.sum, rounding)};
  const NoPath why = choose_path(asked, EnabledFastPaths()).why;
  if (why == NoPath::has_one) return {"general", lanes == 1 ? kOneLane : "no kernel for it"};
  return {"general", TextOf(why, rounding)};
}

Path PathOfTerms(const Accumulator& accumulator, FastPath path, int lanes, bool given) {
  if (accumulator.scheme == Scheme::fixed) return {"integer", ""};
  if (IsStochastic(path) || TakesAnyValues(path)) return {NameOf(path), ""};
  if (path != FastPath::none) {
    return {NameOf(path),
            "while no sum leaves the format's range, else general: the values decide"};
  }
  if (given) return {"general", kGiven};
  if (lanes == 1) return {"general", kOneLane};
  return {"general", "the format, its rounding or the scheme has no fast path"};
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
