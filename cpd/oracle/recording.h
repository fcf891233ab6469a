// SPDX-License-Identifier: Apache-2.0
//
// The oracle of ordered sums, watched: every rounding's code, in program order, and their flags.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpd/oracle/flagged.h"
#include "cpd/oracle/reference_gemm.h"

namespace cpd::reference {

/// What the roundings of one line did.
struct Record {
  Tininess tininess = Tininess::after;
  const std::uint32_t* random = nullptr;  ///< of each rounding, or null
  std::vector<std::uint32_t> codes;       ///< kNoCode for a NaN without one
  std::uint8_t flags = 0;
  std::uint16_t corners = 0;  ///< tie, carry and cancellation, of any

  /// x rounded; the operands that made it are numbers where x is NaN, if `made`.
  Exact round(const Spec& spec, const Exact& x, Options o) {
    if (random != nullptr) o.random = random[codes.size()];
    const Exact result = round_exact(spec, x, o);
    flags |= flags_of(spec, x, result, o, tininess);
    corners |= rounding_corners(spec, x, result);
    codes.push_back(code_of(spec, result).value_or(kNoCode));
    return result;
  }
  Exact made(Exact x, bool any_nan) {
    if (x.is_nan() && !any_nan) flags |= soft::kInvalid;
    return x;
  }
};

/// Dot's arithmetic, which writes into this thread's record.
struct RecordingArithmetic {
  using Number = Exact;
  static inline thread_local Record* record = nullptr;

  static Exact number(float x) { return exact(x); }
  static Exact product(float x, float y) {
    const Exact a = exact(x);
    const Exact b = exact(y);
    return record->made(multiply(a, b), a.is_nan() || b.is_nan());
  }
  static Exact sum(const Exact& x, const Exact& y, const Options& o) {
    const Exact made = add_for(o, x, y);
    if (cancels(x, y, made)) record->corners |= bit(Corner::cancellation);
    return record->made(made, x.is_nan() || y.is_nan());
  }
  static Exact minus(const Exact& x) { return negate(x); }
  static Exact rounded(const Spec& spec, const Exact& x, const Options& o) {
    return record->round(spec, x, o);
  }
  static bool is_finite(const Exact& x) { return x.kind == Exact::Kind::finite; }
  static float to_float(const Exact& x) { return reference::to_float(x); }
};

/// oracle/reference_sum.h's sums, watched.
class RecordedSum {
 public:
  RecordedSum(const Accumulator& accumulator, std::span<const float> terms, const Options& o)
      : scheme_(accumulator.scheme),
        chunk_(static_cast<std::size_t>(accumulator.chunk)),
        format_(spec_of(accumulator.format)),
        inner_(spec_of(accumulator.inner.value_or(accumulator.format))),
        terms_(terms),
        options_(o) {}

  Exact run() const {
    switch (scheme_) {
      case Scheme::sequential:
        return sequential(0, terms_.size(), format_);
      case Scheme::kahan:
        return kahan();
      case Scheme::chunked:
        return chunked();
      case Scheme::pairwise:
        return pairwise();
      default:
        throw std::invalid_argument("scheme without ordered sum");
    }
  }

 private:
  Exact plus(const Spec& spec, const Exact& x, const Exact& y) const {
    return RecordingArithmetic::rounded(spec, RecordingArithmetic::sum(x, y, options_), options_);
  }
  Exact first(const Spec& spec, const Exact& x) const {
    return RecordingArithmetic::rounded(spec, x, options_);
  }

  Exact sequential(std::size_t begin, std::size_t end, const Spec& spec) const {
    Exact s = first(spec, exact(terms_[begin]));
    for (std::size_t k = begin + 1; k < end; ++k) s = plus(spec, s, exact(terms_[k]));
    return s;
  }

  Exact kahan() const {
    Exact s = first(format_, exact(terms_[0]));
    Exact compensation = exact(0.0f);
    for (const float x : terms_.subspan(1)) {
      const Exact y = plus(format_, exact(x), negate(compensation));
      const Exact t = plus(format_, s, y);
      const Exact grown = plus(format_, t, negate(s));
      compensation = plus(format_, grown, negate(y));
      if (t.kind != Exact::Kind::finite) compensation = exact(0.0f);
      s = t;
    }
    return s;
  }

  Exact chunked() const {
    Exact s;
    for (std::size_t begin = 0; begin < terms_.size(); begin += chunk_) {
      const std::size_t end = std::min(terms_.size(), begin + chunk_);
      const Exact t = sequential(begin, end, inner_);
      s = begin == 0 ? first(format_, t) : plus(format_, s, t);
    }
    return s;
  }

  Exact pairwise() const {
    if (terms_.size() == 1) return first(format_, exact(terms_[0]));
    std::vector<std::pair<Exact, std::size_t>> trees;
    const auto merge = [&] {
      const auto [right, count] = trees.back();
      trees.pop_back();
      trees.back() = {plus(format_, trees.back().first, right), trees.back().second + count};
    };
    for (const float x : terms_) {
      trees.emplace_back(exact(x), 1);
      while (trees.size() > 1 && trees[trees.size() - 2].second == trees.back().second) merge();
    }
    while (trees.size() > 1) merge();
    return trees.back().first;
  }

  Scheme scheme_;
  std::size_t chunk_;
  Spec format_, inner_;
  std::span<const float> terms_;
  Options options_;
};

/// Of each rounding of a line of `length` terms, in program order, its name.
inline std::vector<std::string> step_names(const Accumulator& accumulator, std::size_t length,
                                           bool is_sum) {
  std::vector<std::string> names;
  const bool rounds_products = !is_sum && !accumulator.exact_products;
  const auto product = [&] {
    if (rounds_products) names.emplace_back("product");
  };
  const auto trees = [&] {  // merges of equal neighbours, and at the end of all that is left
    std::size_t left = 0;
    for (std::size_t k = 0; k < length; ++k) {
      product();
      const auto merges = static_cast<std::size_t>(std::countr_zero(k + 1));
      names.insert(names.end(), merges, "tree");
      left += 1 - merges;
    }
    if (left > 1) names.insert(names.end(), left - 1, "tree");
  };
  if (!is_sum) names.emplace_back("start");
  switch (accumulator.scheme) {
    case Scheme::sequential:
      for (std::size_t k = 0; k < length; ++k) {
        product();
        names.emplace_back(is_sum && k == 0 ? "start" : "sum");
      }
      break;
    case Scheme::kahan:
      if (is_sum) names.emplace_back("start");
      for (std::size_t k = is_sum ? 1 : 0; k < length; ++k) {
        product();
        for (const char* name : {"y", "t", "grown", "compensation"}) names.emplace_back(name);
      }
      break;
    case Scheme::chunked:
      for (std::size_t k = 0; k < length; ++k) {
        product();
        names.emplace_back("partial");
        const auto chunk = static_cast<std::size_t>(accumulator.chunk);
        if ((k + 1) % chunk == 0 || k + 1 == length) names.emplace_back("sum");
      }
      break;
    case Scheme::pairwise:
      if (is_sum && length == 1) {
        names.emplace_back("start");
        break;
      }
      trees();
      if (!is_sum && length > 0) names.emplace_back("sum");
      break;
    default:
      throw std::invalid_argument("scheme without ordered sum");
  }
  return names;
}

}  // namespace cpd::reference
