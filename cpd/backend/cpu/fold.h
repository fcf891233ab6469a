// SPDX-License-Identifier: Apache-2.0
//
// Ordered sums of spans of elements.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpd/backend/roster.h"
#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/fold_walk.h"

namespace cpd {

/// The state of one ordered sum per element: plane q of element i is planes[q * stride + i], in
/// FoldPlanes planes of the caller's memory, which need not be initialised. `given`: the random
/// integers from element 0 on, in place of generated ones.
template <class T>
struct FoldStateOf {
  T* planes = nullptr;
  std::int64_t stride = 0;
  GivenDraws given{};
};

/// The backend of FoldWalk for n elements from index `first` on, whose planes are in `state`.
/// `Plans` has terms() and sums(), plans by which terms, and chunks' sums and trees, are added.
/// Binary64 takes no short path.
template <class T, class Plans>
class Spans {
 public:
  Spans(Plans& plans, Scheme scheme, std::int64_t first, std::int64_t n, const T* const* terms,
        FoldStateOf<T> state)
      : plans_(plans), scheme_(scheme), first_(first), n_(n), terms_(terms), state_(state) {}

  void add_terms(int plane, bool starts, std::int64_t draw, std::int64_t first,
                 std::int64_t count) {
    Add(plans_.terms(), plane, starts, draw, count, terms_ + first);
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
           const T* const* terms) {
    T* compensation = scheme_ == Scheme::kahan ? Plane(1) : nullptr;
    Kernels().fold({kTypeOf<T>, starts, &plan, draw, first_, n_, count, terms, Plane(plane),
                    compensation, state_.given});
  }
  void AddPlane(const FoldPlan& plan, int to, int from, bool starts, std::int64_t draw) {
    const T* term = Plane(from);
    Add(plan, to, starts, draw, 1, &term);
  }

  Plans& plans_;
  Scheme scheme_;
  std::int64_t first_, n_;
  const T* const* terms_;
  FoldStateOf<T> state_;
};

}  // namespace cpd
