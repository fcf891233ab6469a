// SPDX-License-Identifier: Apache-2.0
//
// Sets the floating-point flags of a program that treats subnormal numbers as zeros.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

#if defined(__x86_64__) || defined(__aarch64__)
#define CPD_TEST_FLUSHES
#endif

namespace cpd::testing {

#if defined(CPD_TEST_FLUSHES)
/// Makes this thread flush subnormal operands and results to zero while the object lives. If
/// `toward_zero` is true, the thread also rounds toward zero.
class Flushing {
 public:
  explicit Flushing(bool toward_zero = false) : saved_(get()) {
    set(saved_ | kFlush | (toward_zero ? kTowardZero : 0));
  }
  ~Flushing() { set(saved_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

  /// Returns whether this thread flushes subnormal operands and results.
  static bool is_on() { return (get() & kFlush) == kFlush; }

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t kFlush = 0x8040;  // MXCSR: of results, of operands
  static constexpr std::uint64_t kTowardZero = 0x6000;
  static std::uint64_t get() { return _mm_getcsr(); }
  static void set(std::uint64_t flags) { _mm_setcsr(static_cast<unsigned>(flags)); }
#else
  static constexpr std::uint64_t kFlush = 1U << 24;  // FPCR: of both
  static constexpr std::uint64_t kTowardZero = 3U << 22;
  static std::uint64_t get() {
    std::uint64_t flags;
    __asm__ volatile("mrs %0, fpcr" : "=r"(flags));
    return flags;
  }
  static void set(std::uint64_t flags) { __asm__ volatile("msr fpcr, %0" : : "r"(flags)); }
#endif
  std::uint64_t saved_;
};
#endif

}  // namespace cpd::testing
