// SPDX-License-Identifier: Apache-2.0
//
// Chooses the fast path of a sum: the first path in paths.def that takes the sum and is switched
// on.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/binary32.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/fast_path.h"
#include "cpd/numeric/fast/half_lanes.h"
#include "cpd/numeric/fast/powers_of_two.h"
#include "cpd/numeric/fast/powers_of_two_exact.h"
#include "cpd/numeric/fast/stochastic.h"
#include "cpd/numeric/fast/veltkamp.h"
#include "cpd/numeric/fast/veltkamp_exact.h"

namespace cpd {

/// Passes the class of a fast path to `run` as a template argument: run.operator()<Path>(). Returns
/// false, without a call, if `path` has no such class (for example `none`).
template <class Run>
CPD_FN constexpr bool with_path(FastPath path, Run run) {
  switch (path) {
#define CPD_FAST_SUM(name, Path)     \
  case FastPath::name:               \
    run.template operator()<Path>(); \
    return true;
#include "cpd/numeric/fast/paths.def"
    default:
      return false;
  }
}

/// Returns the first fast path of the set `on` that takes a sum, or the reason why there is none.
/// `asked` describes the sum (ProductsAsked or TermsAsked).
template <class Asked>
constexpr FastChoice choose_path(const Asked& asked, FastPaths on) {
  FastChoice choice;
  const auto ask = [&](FastPath path, NoPath why) {
    if (choice.path != FastPath::none || why == NoPath::other) return;
    if (why == NoPath::has_one && on.has(path)) {
      choice = {path, why};
    } else if (choice.why != NoPath::switched_off) {
      choice.why = why == NoPath::has_one ? NoPath::switched_off : why;
    }
  };
#define CPD_FAST_SUM(name, Path) ask(FastPath::name, Path::applies(asked));
#include "cpd/numeric/fast/paths.def"
  return choice;
}

/// Returns the fast path of a sum of products, and the bounds on operands and sums within which the
/// path is exact.
constexpr FastPlan make_fast_plan(const ProductsAsked& asked, FastPaths on) {
  FastPlan plan;
  plan.path = choose_path(asked, on).path;
  with_path(plan.path, [&]<class Path>() {
    if constexpr (Path::kTakesProducts) Path::bound(plan, asked);
  });
#define CPD_FAST_LANES(name, Path) \
  if (plan.half == Half::none && on.has(FastPath::name)) plan.half = Path::lanes_of(plan, asked);
#include "cpd/numeric/fast/paths.def"
  return plan;
}

}  // namespace cpd
