// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/sum_fixed.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/sums/fixed_number.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// The integers of n sums: word q of sum i is words[i * plan.words + q].
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
  /// The values of the sums, to be rounded into the format; NaN after a term not finite.
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

/// SumFixed in T: float, or double for terms of binary64.
template <class T>
void SumIn(const TensorView& x, std::int64_t terms, std::int64_t stride, const FixedPlan& plan,
           const TensorView& out) {
  const std::int64_t step = stride * static_cast<std::int64_t>(SizeOf(x.dtype));
  parallel_for(out.size(), kBlock, SerialBelow(terms), [&](std::int64_t begin, std::int64_t end) {
    Writer<T> writer(out);
    Integers sums(plan, kStage);
    std::vector<double> values(static_cast<std::size_t>(kStage));
    for (std::int64_t i = begin; i < end; i += kStage) {
      const std::int64_t n = std::min(kStage, end - i);
      sums.Start(n);
      TensorView slice = x;
      for (std::int64_t k = 0; k < terms; ++k) {
        if (k % 64 == 63) CheckInterrupt();
        Reader<T> reader(slice);
        sums.Add(n, reader.Read(i, n));
        slice.data = static_cast<std::uint8_t*>(slice.data) + step;
      }
      sums.Values(n, values.data());
      RoundInPlace(plan.end, i, n, values.data());
      std::copy_n(values.data(), n, writer.Target(i, n));
      writer.Flush(i, n);
    }
  });
}

}  // namespace

void SumFixed(const TensorView& x, std::int64_t terms, std::int64_t stride,
              const Accumulator& accumulator, const TensorView& out) {
  const FixedPlan plan = AccumulatorPlanOf(accumulator, terms).fixed;
  if (Explains()) {
    NotePath("sum", PathOfTerms(accumulator, Split::none, 1, false));
    Explaining::Current()->Run("portable", "fixed_number");
  }
  if (!x.on_host()) return cuda::SumFixed(x, terms, stride, plan, out);
  if (x.dtype == DType::f64) return SumIn<double>(x, terms, stride, plan, out);
  SumIn<float>(x, terms, stride, plan, out);
}

}  // namespace cpd
