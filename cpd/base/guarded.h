// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/numeric/lanes/environment.h"

namespace cpd {
namespace detail {

/// Not inlined, and not free of effects for a compiler that looks inside: its arithmetic stays
/// between the environment's set and restore.
template <class Run>
__attribute__((noinline)) auto CallApart(const Run& run) {
  __asm__ volatile("" : : : "memory");
  return run();
}

}  // namespace detail

/// Calls run() in the default floating-point environment (numeric/lanes/environment.h) and gives
/// what it gives. All arithmetic outside the kernels and parallel_for stands in one: plans, bounds,
/// comparisons of values, references.
template <class Run>
auto Guarded(const Run& run) {
  if (Environment::is_current()) return run();
  const Environment environment;
  return detail::CallApart(run);
}

}  // namespace cpd
