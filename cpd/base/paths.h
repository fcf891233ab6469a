// SPDX-License-Identifier: Apache-2.0
//
// The names of the paths by which operations compute, for Explanation. cpd/ops/README.md lists
// them. A name describes a choice that the plan has made (choose_form, choose_path,
// KernelTable::gemm_path, route_of); this file chooses nothing.
#pragma once

#include <string>

#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The name of a path (a way to compute). `why` says why no fast path is used, or on what else the
/// path depends, such as the values; empty if there is nothing to say.
struct Path {
  std::string name, why;
};

/// Returns the path by which a cast rounds each number to a format. `binary64`: whether the number
/// has more bits than binary32.
CPD_API Path PathOf(const Format& format, const RoundingOptions& options, bool binary64 = false);
/// Returns the path by which kernels compute a sum of products. `path`: the kernels' fast path for
/// the accumulator. `lanes`: how many numbers the kernels compute at once. `given`: whether the
/// caller passes the random integers.
CPD_API Path PathOf(const Accumulator& accumulator, const GemmPath& path, int lanes, bool given);
/// Returns the path by which kernels compute an ordered sum of terms. `path`: the kernels' fast
/// path for the accumulator. `lanes`: how many numbers the kernels compute at once. `given`:
/// whether the caller passes the random integers.
CPD_API Path PathOfTerms(const Accumulator& accumulator, FastPath path, int lanes, bool given);
/// Returns the path by which elements are rounded to a scaled format. `powers`: whether blocks that
/// PowerBlocks supports (power_blocks.h) are cast separately from other blocks.
CPD_API Path PathOf(const ScaledPlan& plan, ElementRoute route, bool powers);

}  // namespace cpd
