// SPDX-License-Identifier: Apache-2.0
//
// Runs arithmetic outside the kernels in the default floating-point environment, so that a caller
// who flushes subnormals, or rounds another way, changes no bit.
#pragma once

#include "cpd/numeric/lanes/environment.h"

namespace cpd {
namespace detail {

/// Calls run(). It is not inlined and has an effect on memory for the compiler, so that its
/// arithmetic stays between the environment's set and restore.
template <class Run>
__attribute__((noinline)) auto CallApart(const Run& run) {
  __asm__ volatile("" : : : "memory");
  return run();
}

}  // namespace detail

/// Calls run() in the default floating-point environment (numeric/lanes/environment.h) and returns
/// its result. All arithmetic outside the kernels and parallel_for is in such a call: plans,
/// bounds, comparisons of values, references.
template <class Run>
auto Guarded(const Run& run) {
  if (Environment::is_current()) return run();
  const Environment environment;
  return detail::CallApart(run);
}

}  // namespace cpd
