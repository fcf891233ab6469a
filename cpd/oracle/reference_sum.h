// SPDX-License-Identifier: Apache-2.0
//
// The oracle of ordered sums of terms or products. Computes every scheme rounding by rounding, in
// any arithmetic that has the functions of ExactArithmetic.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>

#include "cpd/oracle/reference.h"
#include "cpd/spec/accumulator.h"

namespace cpd::reference {

/// The arithmetic of an ordered sum, in exact numbers. recording.h has an arithmetic that records
/// each rounding; tests/testing/wide.h has a faster arithmetic that shares no code with this one.
struct ExactArithmetic {
  using Number = Exact;
  static Number number(float x) { return exact(x); }
  static Number product(float x, float y) { return multiply(exact(x), exact(y)); }
  /// Returns the exact sum of x and y, to be rounded with options `o`. The options decide the sign
  /// of a zero sum.
  static Number sum(const Number& x, const Number& y, const Options& o) { return add_for(o, x, y); }
  static Number minus(const Number& x) { return negate(x); }
  static Number rounded(const Spec& spec, const Number& x, const Options& o) {
    return round_exact(spec, x, o);
  }
  static bool is_finite(const Number& x) { return x.kind == Exact::Kind::finite; }
  static float to_float(const Number& x) { return reference::to_float(x); }
};

/// The scheme of an ordered sum, and the formats of its partial sums.
struct SumOrder {
  Scheme scheme = Scheme::sequential;
  Spec format{};          ///< the sum's format
  Spec inner{};           ///< the format of a chunk's sum
  std::size_t chunk = 1;  ///< terms of a chunk
};

inline SumOrder order_of(const Accumulator& accumulator) {
  return {accumulator.scheme, spec_of(accumulator.format),
          spec_of(accumulator.inner.value_or(accumulator.format)),
          static_cast<std::size_t>(accumulator.chunk)};
}

/// Computes the sum of term(0), …, term(count - 1). Calls each term once, in order. Calls next()
/// for the options of each rounding, in program order.
template <class Arithmetic, class Term, class Next>
class OrderedSum {
 public:
  using Number = typename Arithmetic::Number;

  OrderedSum(const SumOrder& order, std::size_t count, Term term, Next next, Arithmetic arithmetic)
      : order_(order), count_(count), term_(term), next_(next), arithmetic_(arithmetic) {}

  /// Returns the sum of the terms alone, or +0 if there are no terms. The first term of the sum,
  /// and of each chunk, is rounded.
  Number of_terms() {
    if (count_ == 0) return arithmetic_.number(0.0f);
    switch (order_.scheme) {
      case Scheme::sequential:
        return of_range(0, count_, order_.format);
      case Scheme::kahan:
        return kahan(rounded(order_.format, term_(0)), 1);
      case Scheme::chunked: {
        const auto partial = [&](std::size_t begin) {
          return of_range(begin, end_of_chunk(begin), order_.inner);
        };
        return chunked(rounded(order_.format, partial(0)), order_.chunk, partial);
      }
      case Scheme::pairwise:
        return count_ == 1 ? rounded(order_.format, term_(0)) : tree(0, count_);
      case Scheme::block_fma:
      case Scheme::fixed:
        break;
    }
    throw std::invalid_argument("scheme without ordered sum");
  }

  /// Returns `start` plus the terms. `start` must already be rounded. The sums of chunks start from
  /// +0.
  Number from(const Number& start) {
    switch (order_.scheme) {
      case Scheme::sequential:
        return sequential(start, 0, count_, order_.format);
      case Scheme::kahan:
        return kahan(start, 0);
      case Scheme::chunked:
        return chunked(start, 0, [&](std::size_t begin) {
          return sequential(arithmetic_.number(0.0f), begin, end_of_chunk(begin), order_.inner);
        });
      case Scheme::pairwise:
        return count_ == 0 ? start : plus(order_.format, start, tree(0, count_));
      case Scheme::block_fma:
      case Scheme::fixed:
        break;
    }
    throw std::invalid_argument("scheme without ordered sum");
  }

 private:
  Number rounded(const Spec& spec, const Number& x) {
    return arithmetic_.rounded(spec, x, next_());
  }
  Number plus(const Spec& spec, const Number& x, const Number& y) {
    const Options o = next_();
    return arithmetic_.rounded(spec, arithmetic_.sum(x, y, o), o);
  }
  Number minus(const Spec& spec, const Number& x, const Number& y) {
    return plus(spec, x, arithmetic_.minus(y));
  }
  std::size_t end_of_chunk(std::size_t begin) const {
    return begin + std::min(order_.chunk, count_ - begin);
  }

  Number sequential(Number s, std::size_t begin, std::size_t end, const Spec& spec) {
    for (std::size_t k = begin; k < end; ++k) {
      const Number x = term_(k);
      s = plus(spec, s, x);
    }
    return s;
  }
  Number of_range(std::size_t begin, std::size_t end, const Spec& spec) {
    return sequential(rounded(spec, term_(begin)), begin + 1, end, spec);
  }

  /// Kahan's sum (Communications of the ACM 8(1), 1965): y = x - c; t = s + y; c = (t - s) - y; s =
  /// t. Each operation is rounded. If the new s is infinite or NaN, c becomes +0.
  Number kahan(Number s, std::size_t begin) {
    const Spec& spec = order_.format;
    Number compensation = arithmetic_.number(0.0f);
    for (std::size_t k = begin; k < count_; ++k) {
      const Number x = term_(k);
      const Number y = minus(spec, x, compensation);
      const Number t = plus(spec, s, y);
      const Number grown = minus(spec, t, s);
      compensation = minus(spec, grown, y);
      if (!arithmetic_.is_finite(t)) compensation = arithmetic_.number(0.0f);
      s = t;
    }
    return s;
  }

  /// Adds the sums of the chunks that begin at terms `begin`, begin + chunk, … to s, one by one,
  /// and returns the total. partial(k) returns the sum of the chunk that begins at term k.
  template <class Partial>
  Number chunked(Number s, std::size_t begin, const Partial& partial) {
    for (std::size_t k = begin; k < count_; k += order_.chunk) {
      const Number chunk = partial(k);
      s = plus(order_.format, s, chunk);
    }
    return s;
  }

  /// Returns the sum of terms begin … end - 1 by a tree. The terms themselves are not rounded. The
  /// size of the left subtree is the largest power of two below the number of terms.
  Number tree(std::size_t begin, std::size_t end) {
    if (end - begin == 1) return term_(begin);
    const std::size_t middle = begin + std::bit_floor(end - begin - 1);
    const Number left = tree(begin, middle);
    const Number right = tree(middle, end);
    return plus(order_.format, left, right);
  }

  SumOrder order_;
  std::size_t count_;
  Term term_;
  Next next_;
  Arithmetic arithmetic_;
};

/// A function that returns the random integer of the next rounding, in program order.
using RandomSource = std::function<std::uint32_t()>;

/// Returns the ordered sum of terms. If `random` is set, each rounding takes one random integer
/// from it.
inline float sum(const SumOrder& order, std::span<const float> terms, const Options& o = {},
                 const RandomSource& random = {}) {
  const auto term = [&](std::size_t k) { return exact(terms[k]); };
  const auto next = [&] {
    Options each = o;
    if (random) each.random = random();
    return each;
  };
  return to_float(OrderedSum(order, terms.size(), term, next, ExactArithmetic{}).of_terms());
}

inline float sum_sequential(const Spec& spec, std::span<const float> terms, const Options& o = {},
                            const RandomSource& random = {}) {
  return sum({.scheme = Scheme::sequential, .format = spec}, terms, o, random);
}

inline float sum_kahan(const Spec& spec, std::span<const float> terms, const Options& o = {},
                       const RandomSource& random = {}) {
  return sum({.scheme = Scheme::kahan, .format = spec}, terms, o, random);
}

}  // namespace cpd::reference
