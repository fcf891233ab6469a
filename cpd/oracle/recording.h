// SPDX-License-Identifier: Apache-2.0
//
// Records the roundings of a sum. A record has the code of each rounding, in program order, and the
// flags and corner cases of all roundings. The file also has the arithmetic with which
// reference_sum.h's sums write a record, and a function that names each rounding.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpd/oracle/flagged.h"
#include "cpd/oracle/reference.h"
#include "cpd/spec/accumulator.h"

namespace cpd::reference {

/// The record of the roundings of one line.
struct Record {
  Tininess tininess = Tininess::after;
  const std::uint32_t* random = nullptr;  ///< one integer for each rounding, or null
  std::vector<std::uint32_t> codes;       ///< kNoCode for a NaN without a code
  std::uint8_t flags = 0;
  std::uint16_t corners = 0;     ///< tie, carry and cancellation of any rounding
  bool invalid_product = false;  ///< of a fused sum: its product is 0 * Inf

  /// Returns x rounded. Records the code, the flags and the corner cases of the rounding.
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

/// ExactArithmetic that also records each rounding. `fused`: each product and its addition to the
/// sum are one fma. An fma raises no flag for a product 0 * Inf if the sum is already NaN.
struct RecordingArithmetic {
  using Number = Exact;
  Record* record;
  bool fused = false;

  static Exact number(float x) { return exact(x); }
  Exact product(float x, float y) const {
    const Exact a = exact(x);
    const Exact b = exact(y);
    const Exact exact_product = multiply(a, b);
    const bool any_nan = a.is_nan() || b.is_nan();
    if (!fused) return record->made(exact_product, any_nan);
    record->invalid_product = exact_product.is_nan() && !any_nan;
    return exact_product;
  }
  Exact sum(const Exact& x, const Exact& y, const Options& o) const {
    const Exact made = add_for(o, x, y);
    if (cancels(x, y, made)) record->corners |= bit(Corner::cancellation);
    const bool of_product = std::exchange(record->invalid_product, false);
    return record->made(made, x.is_nan() || (y.is_nan() && !of_product));
  }
  static Exact minus(const Exact& x) { return negate(x); }
  Exact rounded(const Spec& spec, const Exact& x, const Options& o) const {
    return record->round(spec, x, o);
  }
  static bool is_finite(const Exact& x) { return x.kind == Exact::Kind::finite; }
};

/// Returns the names of the roundings of a line of `length` terms, in program order.
inline std::vector<std::string> step_names(const Accumulator& accumulator, std::size_t length,
                                           bool is_sum) {
  std::vector<std::string> names;
  const bool rounds_products = !is_sum && !accumulator.exact_products;
  const auto product = [&] {
    if (rounds_products) names.emplace_back("product");
  };
  const auto trees = [&] {  // merges of equal neighbors, and at the end of the remaining trees
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
