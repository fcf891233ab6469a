// SPDX-License-Identifier: Apache-2.0
//
// The names of the paths by which operations compute, for Explanation: one list, in
// cpd/ops/README.md. Each name is of a choice that the plan has made (choose_form, choose_path,
// KernelTable::gemm_path, route_of); nothing is chosen here.
#pragma once

#include <string>

#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// A path, and the reason why it is general, or what else decides it; empty: neither.
struct Path {
  std::string name, why;
};

/// Rounding a number once; binary64: a number of more bits than binary32 has.
CPD_API Path PathOf(const Format& format, const RoundingOptions& options, bool binary64 = false);
/// A sum of products of an accumulator by kernels that have `path` for it. `lanes`: the numbers
/// that they compute at once; `given`: whether the caller gives the random integers.
CPD_API Path PathOf(const Accumulator& accumulator, const GemmPath& path, int lanes, bool given);
/// An ordered sum of terms by kernels that have `path` for it.
CPD_API Path PathOfTerms(const Accumulator& accumulator, FastPath path, int lanes, bool given);
/// Elements of a scaled format. powers: whether blocks with usual powers of two as scales are cast
/// apart from others.
CPD_API Path PathOf(const ScaledPlan& plan, ElementRoute route, bool powers);

}  // namespace cpd
