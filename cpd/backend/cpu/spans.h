// SPDX-License-Identifier: Apache-2.0
//
// Operations on contiguous binary32 values in the caller's thread: casts that begin at any index,
// ordered sums of several terms, and counts of NaN, infinities and values that a cast makes zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "cpd/backend/message_calls.h"
#include "cpd/backend/roster.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/spec/error.h"

namespace cpd {

/// The number of values of a layer below which one thread sums the layer over all ranks.
constexpr std::int64_t kSerialRanksBelow = 1 << 15;

/// Memory for arrays (rows) of n binary32 values each. Each array begins at a cache line.
class AlignedRows {
 public:
  AlignedRows(std::int64_t rows, std::int64_t n) : width_((n + 15) / 16 * 16) {
    const std::size_t bytes = static_cast<std::size_t>(rows * width_) * sizeof(float);
    if (bytes == 0) return;
    memory_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (memory_ == nullptr) throw NoMemory(bytes, "a block of terms");
  }
  [[nodiscard]] float* operator[](std::int64_t row) const { return memory_.get() + row * width_; }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };

  std::int64_t width_;
  std::unique_ptr<float, Free> memory_;
};

/// Returns the shift, limited to ±600. Beyond ±600 the shift no longer changes the rounded x *
/// 2^shift, which is far below every format's grid or above every format's range.
constexpr int BoundedShift(int shift) { return std::clamp(shift, -600, 600); }

/// Calls run(i, count, random) for ranges i … i + count - 1 that cover [0, n). If the plan is
/// stochastic and index `first` is inside a block (kBlock), generates each range's random integers
/// and passes them as `random`. Otherwise makes one call, for all n values, with null for `random`.
template <class Run>
void WithIntegers(const RoundPlan& plan, std::int64_t first, std::int64_t n, Run run) {
  const std::int64_t skip = first % kBlock;
  if (plan.mode != Rounding::stochastic || skip == 0) return run(0, n, nullptr);
  constexpr std::int64_t kStep = 4 * kBlock;
  std::uint32_t random[kStep + kBlock];
  for (std::int64_t i = 0; i < n; i += kStep) {
    const std::int64_t count = std::min(kStep, n - i);
    Kernels().random_integers(plan.random_bits, plan.seed, plan.stream, first - skip + i,
                              skip + count, random);
    run(i, count, random + skip);
  }
}

/// Computes y[i] = x[i] * 2^shift, rounded by the plan with the random integers from index `first`
/// on. y may be x.
void CastSpan(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n, const float* x,
              float* y);
/// Computes y[i] = (x[i] * 2^shift) / divisor. The product and the quotient are each rounded once
/// to binary32. NaN gives 0x7FC00000. y may be x.
CPD_API void UnscaleSpan(int shift, float divisor, std::int64_t n, const float* x, float* y);

/// Compares n values x with `terms`, to which they were cast. Adds to `counts` the number of NaN
/// and infinite x, of nonzero x whose term is zero, and of zero terms.
CPD_API void CountLosses(std::int64_t n, const float* x, const float* terms, SegmentCounts& counts);
/// Adds counts to `to`. Several threads may add to the same `to` at once.
CPD_API void AddCounts(const SegmentCounts& counts, SegmentCounts& to);

/// The state of ordered sums, one sum for each element of a range. A plane is an array with one
/// state value of each sum: value q of sum i is planes[q * stride + i]. The caller provides memory
/// for FoldPlanes planes and need not initialize it. `given`: the caller's random integers,
/// starting with the integers of sum 0.
template <class T>
struct FoldStateOf {
  T* planes = nullptr;
  std::int64_t stride = 0;
  GivenDraws given{};
};

/// Carries out the operations of SumWalk (the loop that adds terms in the documented order) for n
/// sums, from element index `first` on. `state` holds the sums' planes (the values of their
/// states). plans.terms() returns the plan for adding terms, and plans.sums() the plan for adding
/// sums of chunks and trees. Sums in binary64 have no fast path.
template <class T, class Plans>
class FoldSpans {
 public:
  FoldSpans(Plans& plans, std::int64_t first, std::int64_t n, const T* const* terms,
            FoldStateOf<T> state)
      : plans_(plans), first_(first), n_(n), terms_(terms), state_(state) {}

  void add_terms(int plane, bool starts, std::int64_t draw, std::int64_t first,
                 std::int64_t count) {
    Add(plans_.terms(), plane, starts, draw, count, terms_ + first);
  }
  void add_compensated(bool starts, std::int64_t draw, std::int64_t first, std::int64_t count) {
    Add(plans_.terms(), 0, starts, draw, count, terms_ + first, Plane(1));
  }
  void add_chunk(bool starts, std::int64_t draw) { AddPlane(plans_.sums(), 0, 1, starts, draw); }
  void open_tree(int plane, std::int64_t term) { std::copy_n(terms_[term], n_, Plane(plane)); }
  void merge_term(int plane, std::int64_t draw, std::int64_t term) {
    Add(plans_.terms(), plane, false, draw, 1, terms_ + term);
  }
  void merge_trees(int plane, std::int64_t draw, bool of_term) {
    AddPlane(of_term ? plans_.terms() : plans_.sums(), plane, plane + 1, false, draw);
  }
  void round_tree(std::int64_t draw) { AddPlane(plans_.terms(), 0, 0, true, draw); }

 private:
  [[nodiscard]] T* Plane(int plane) const { return state_.planes + plane * state_.stride; }

  void Add(const FoldPlan& plan, int plane, bool starts, std::int64_t draw, std::int64_t count,
           const T* const* terms, T* compensation = nullptr) {
    Kernels().fold({kTypeOf<T>, starts, &plan, draw, first_, n_, count, terms, Plane(plane),
                    compensation, state_.given});
  }
  void AddPlane(const FoldPlan& plan, int to, int from, bool starts, std::int64_t draw) {
    const T* term = Plane(from);
    Add(plan, to, starts, draw, 1, &term);
  }

  Plans& plans_;
  std::int64_t first_, n_;
  const T* const* terms_;
  FoldStateOf<T> state_;
};

/// Makes a SumPlan an argument of FoldSpans, which asks for two plans: terms() for adding terms,
/// and sums() for adding sums of chunks and trees.
struct PlansOfSum {
  const SumPlan& plan;
  [[nodiscard]] const FoldPlan& terms() const { return plan.terms; }
  [[nodiscard]] const FoldPlan& sums() const { return plan.sums; }
};

/// Adds terms k … k + terms.size() - 1 to n sums of `count` terms. After the last term, plane 0 of
/// the sums' state has the sums, rounded to the result's format.
void AddTerms(const SumPlan& plan, std::int64_t count, std::int64_t k,
              std::span<const float* const> terms, std::int64_t first, std::int64_t n,
              float* planes, std::int64_t stride);

}  // namespace cpd
