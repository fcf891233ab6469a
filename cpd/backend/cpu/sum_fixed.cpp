// SPDX-License-Identifier: Apache-2.0
//
// Sums over a dimension, computed in integers of a fixed width.
#include <algorithm>
#include <limits>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/explaining.h"
#include "cpd/base/interrupt.h"
#include "cpd/numeric/sums/fixed_number.h"

namespace cpd::cpu {
namespace {

/// n sums, each an integer of plan.words words of 32 bits. Word q of sum i is words[i * plan.words
/// + q].
struct Integers {
  Integers(const FixedPlan& with, std::int64_t n)
      : plan(with), words(static_cast<std::size_t>(n * with.words)), finite(words.size()) {}

  void Start(std::int64_t n) {
    std::fill_n(words.begin(), n * plan.words, 0);
    std::fill_n(finite.begin(), n, std::uint8_t{1});
  }
  template <class T>
  void Add(std::int64_t n, const T* terms) {
    for (std::int64_t i = 0; i < n; ++i) {
      const FixedTerm term = fixed_term(terms[i], plan.point.fraction, plan.point.rounding);
      finite[static_cast<std::size_t>(i)] &= term.finite ? 1 : 0;
      if (!term.finite) continue;
      FixedNumber sum(plan, At(i), 1);
      sum.add(term, plan.saturates);
      sum.store(At(i), 1);
    }
  }
  /// Returns the values of the sums before they are rounded into the format. A sum is NaN if one of
  /// its terms is NaN or infinite.
  void Values(std::int64_t n, double* values) {
    for (std::int64_t i = 0; i < n; ++i) {
      values[i] = finite[static_cast<std::size_t>(i)] != 0
                      ? FixedNumber(plan, At(i), 1).value(plan.point.fraction)
                      : std::numeric_limits<double>::quiet_NaN();
    }
  }
  std::uint32_t* At(std::int64_t i) { return words.data() + i * plan.words; }

  const FixedPlan& plan;
  std::vector<std::uint32_t> words;
  std::vector<std::uint8_t> finite;
};

template <class T>
void SumIntegers(const FixedSumCall& call) {
  const std::int64_t step = call.step * static_cast<std::int64_t>(SizeOf(call.x.dtype));
  parallel_for(call.n, kBlock, SerialBelow(call.terms), [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(call.x);
    Writer<T> writer(call.out);
    Integers sums(call.plan, kStage);
    std::vector<double> values(static_cast<std::size_t>(kStage));
    ForRanges(begin, end, kStage, [&](std::int64_t i, std::int64_t n) {
      sums.Start(n);
      auto* term = static_cast<std::uint8_t*>(call.x.data);
      for (std::int64_t k = 0; k < call.terms; ++k, term += step) {
        if (k % 64 == 63) CheckInterrupt();
        reader.Move(term);
        sums.Add(n, reader.Read(i, n));
      }
      sums.Values(n, values.data());
      RoundInPlace(call.plan.end, i, n, values.data());
      std::copy_n(values.data(), n, writer.Target(i, n));
      writer.Flush(i, n);
    });
  });
}

}  // namespace

int sum_fixed(const Launch& /*launch*/, const FixedSumCall& call) {
  if (Explaining* const explaining = Explaining::Current()) {
    explaining->Run("portable", "fixed_number");
  }
  call.x.dtype == DType::f64 ? SumIntegers<double>(call) : SumIntegers<float>(call);
  return 0;
}

}  // namespace cpd::cpu
