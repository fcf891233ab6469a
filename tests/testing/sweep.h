// SPDX-License-Identifier: Apache-2.0
//
// Compares the results for all 2^32 binary32 patterns with a step function, block by block, on all
// cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpd/oracle/reference.h"
#include "tests/testing/bits.h"

namespace cpd::testing {

/// The number of patterns that a thread checks at a time. Inputs, outputs and expected results fit
/// in its cache.
constexpr std::uint64_t kSweepBlock = std::uint64_t{1} << 17;
constexpr std::uint64_t kPatterns = std::uint64_t{1} << 32;

/// Limits the library to one thread, because the sweep runs threads of its own. Must be constructed
/// before any operation.
struct OneLibraryThread {
  OneLibraryThread() { setenv("CPD_NUM_THREADS", "1", 1); }
};

/// Returns n, where one in n blocks of kSweepBlock binary32 patterns is checked: 1 (all blocks), or
/// the value of the environment variable CPD_EXHAUSTIVE_STRIDE for a faster run.
inline std::uint64_t sweep_stride() {
  const char* text = std::getenv("CPD_EXHAUSTIVE_STRIDE");
  const std::uint64_t stride = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  return stride == 0 ? 1 : stride;
}

/// The expected results of an operation for all binary32 patterns, as a step function. A Step has
/// the first pattern with a new result, and that result. T is the type of the result: a value or a
/// code.
template <class T>
class Expectation {
 public:
  struct Step {
    std::uint32_t first;
    T result;
  };

  Expectation(std::vector<Step> steps, T of_nan) : steps_(std::move(steps)), of_nan_(of_nan) {
    steps_.push_back({0xFF800001u, of_nan});
  }

  /// Writes to `out` the expected results for kSweepBlock consecutive patterns from `first` on.
  void fill(std::uint32_t first, T* out) const {
    const auto begins_after = [](std::uint64_t bits, const Step& step) {
      return bits < step.first;
    };
    auto step = std::upper_bound(steps_.begin(), steps_.end(), first, begins_after) - 1;
    const std::uint64_t end = std::uint64_t{first} + kSweepBlock;
    for (std::uint64_t at = first; at < end;) {
      const auto next = step + 1;
      const std::uint64_t until =
          next == steps_.end() ? end : std::min<std::uint64_t>(next->first, end);
      std::fill(out + (at - first), out + (until - first), step->result);
      at = until;
      if (at < end) step = next;
    }
    // The step function lacks the positive NaNs, whose patterns lie between infinity's and -0's.
    const std::uint64_t from = std::max<std::uint64_t>(first, 0x7F800001u);
    const std::uint64_t until = std::min<std::uint64_t>(end, 0x80000000u);
    if (from < until) std::fill(out + (from - first), out + (until - first), of_nan_);
  }

 private:
  std::vector<Step> steps_;
  T of_nan_;
};

inline Expectation<float> expect_cast(const reference::Spec& spec, const reference::Options& o) {
  std::vector<Expectation<float>::Step> steps;
  for (const auto& [first, value] : reference::step_function(spec, o)) {
    steps.push_back({first, value});
  }
  return {std::move(steps), from_bits(reference::kNanBits)};
}

/// Sets out[i] to pattern first + i, and to the quiet NaN if the pattern is any NaN.
inline void fill_patterns(std::uint32_t first, float* out) {
  for (std::uint32_t i = 0; i < kSweepBlock; ++i) {
    const bool is_nan = ((first + i) & 0x7FFFFFFF) > 0x7F800000;
    out[i] = from_bits(is_nan ? reference::kNanBits : first + i);
  }
}

struct SweepResult {
  std::uint64_t inputs = 0;
  std::uint64_t mismatches = 0;
  std::string first;  // a mismatch, described
};

/// Calls operation(input, output, n) on blocks of all patterns, and compares each output bit for
/// bit with the block that fill(first, expected) writes.
template <class T, class Fill, class Operation>
SweepResult sweep(const Fill& fill, const Operation& operation) {
  SweepResult result;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  const std::uint64_t stride = sweep_stride();
  const auto work = [&] {
    std::vector<float> input(kSweepBlock);
    std::vector<T> expected(kSweepBlock), output(kSweepBlock);
    std::uint64_t inputs = 0;
    for (;;) {
      const std::uint64_t begin = next.fetch_add(stride) * kSweepBlock;
      if (begin >= kPatterns) break;
      const auto first = static_cast<std::uint32_t>(begin);
      for (std::uint32_t i = 0; i < kSweepBlock; ++i) input[i] = from_bits(first + i);
      fill(first, expected.data());
      operation(input.data(), output.data(), static_cast<std::int64_t>(kSweepBlock));
      inputs += kSweepBlock;
      if (std::memcmp(expected.data(), output.data(), kSweepBlock * sizeof(T)) == 0) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      for (std::size_t i = 0; i < kSweepBlock; ++i) {
        if (same_bits(expected[i], output[i])) continue;
        if (result.mismatches++ == 0) {
          result.first = "input " + hex(input[i]) + ": expected " + hex(expected[i]) + ", got " +
                         hex(output[i]);
        }
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    result.inputs += inputs;
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
  return result;
}

/// Counts the sweeps, and prints how many inputs were covered.
class SweepReport {
 public:
  void add(const SweepResult& result) {
    ++sweeps_;
    inputs_ += result.inputs;
    mismatches_ += result.mismatches;
  }
  void print(const std::string& covered) const {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::printf("%s = %llu sweeps, %llu inputs, %llu mismatches, %.0f s%s\n", covered.c_str(),
                static_cast<unsigned long long>(sweeps_), static_cast<unsigned long long>(inputs_),
                static_cast<unsigned long long>(mismatches_), seconds,
                sweep_stride() == 1 ? "" : " (CPD_EXHAUSTIVE_STRIDE: not all inputs)");
    std::fflush(stdout);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::uint64_t sweeps_ = 0;
  std::uint64_t inputs_ = 0;
  std::uint64_t mismatches_ = 0;
};

}  // namespace cpd::testing
