// SPDX-License-Identifier: Apache-2.0
//
// Runs arithmetic outside the kernels in the default floating-point environment. A caller who
// flushes subnormals or uses another rounding mode then changes no bit.
#pragma once

#include "cpd/numeric/lanes/environment.h"

namespace cpd {
namespace detail {

/// Calls run(). The call is not inlined, and the compiler assumes that it changes memory. So the
/// compiler cannot move run's arithmetic out of the range in which the environment is set.
template <class Run>
__attribute__((noinline)) auto CallApart(const Run& run) {
  __asm__ volatile("" : : : "memory");
  return run();
}

}  // namespace detail

/// Calls run() in the default floating-point environment (numeric/lanes/environment.h) and returns
/// its result. All arithmetic outside the kernels and parallel_for must be in such a call: plans,
/// bounds, comparisons of values, references.
template <class Run>
auto Guarded(const Run& run) {
  if (Environment::is_current()) return run();
  const Environment environment;
  return detail::CallApart(run);
}

}  // namespace cpd
