// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

/// The default floating-point environment (nearest-even, subnormals kept) of this thread while
/// alive, whatever the program has set: flags like flush-to-zero must not change results. What it
/// is for belongs behind a call that is not inlined, since compilers move arithmetic past it.
class Environment {
 public:
  /// The default but for rounding toward zero.
  struct TowardZero {};

  CPD_FN Environment() : saved_(get()) { set(kDefault); }
  CPD_FN explicit Environment(TowardZero) : saved_(get()) { set(kDefault | kTowardZero); }
  CPD_FN ~Environment() { set(saved_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  /// True where this thread is in it as it is, what its operations have signalled aside.
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
  static constexpr std::uint64_t kSignals = 0;  // in a register of their own
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
