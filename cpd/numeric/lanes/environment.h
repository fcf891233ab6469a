// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

/// Sets this thread's floating-point environment to the default (nearest-even, subnormals
/// preserved) for the lifetime of the object. So the program's flags, such as flush-to-zero, do not
/// change results. Put the arithmetic into a function that is not inlined, because compilers move
/// operations across the constructor.
class Environment {
 public:
  /// Selects the default environment with rounding toward zero.
  struct TowardZero {};

  CPD_FN Environment() : saved_(get()) { set(kDefault); }
  CPD_FN explicit Environment(TowardZero) : saved_(get()) { set(kDefault | kTowardZero); }
  CPD_FN ~Environment() { set(saved_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  /// Returns whether this thread's environment is the default environment. Flags of exceptions that
  /// have occurred are ignored.
  CPD_FN static bool is_current() { return (get() & ~kSignals) == kDefault; }

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1F80;  // MXCSR: all exceptions masked
  static constexpr unsigned kTowardZero = 0x6000;
  static constexpr unsigned kSignals = 0x3F;  // the exceptions that have occurred
  CPD_FN static unsigned get() { return __builtin_ia32_stmxcsr(); }
  CPD_FN static void set(unsigned value) { __builtin_ia32_ldmxcsr(value); }
  unsigned saved_;
#elif defined(__aarch64__)
  static constexpr std::uint64_t kDefault = 0;  // FPCR
  static constexpr std::uint64_t kTowardZero = 0xC00000;
  static constexpr std::uint64_t kSignals = 0;  // the flags of exceptions are in FPSR
  CPD_FN static std::uint64_t get() {
    std::uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  CPD_FN static void set(std::uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
  std::uint64_t saved_;
#else
#error "say how this CPU's floating-point environment is set to its default"
#endif
};

}  // namespace CPD_ISA
}  // namespace cpd
