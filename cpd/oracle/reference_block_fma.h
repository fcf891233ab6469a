// SPDX-License-Identifier: Apache-2.0
//
// The oracle of a matrix unit (host only). Computes the sum of one block of products and the
// running sum, for every Adder, in exact numbers, by the definitions in cpd/spec/block_fma.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "cpd/oracle/reference.h"
#include "cpd/spec/accumulator.h"

namespace cpd::reference {

// --- Operands ------------------------------------------------------------------------------------

/// Returns the values of k in the order in which the matrix unit adds its products. In each group
/// of unit.group successive k, the k with k mod stride < take come first, then the k with the next
/// `take` values of k mod stride, and so on. If the last group is incomplete, -1 stands for each
/// missing k.
inline std::vector<std::int64_t> unit_order(const BlockFma& unit, std::size_t length) {
  const auto end = static_cast<std::int64_t>(length);
  const std::int64_t group = unit.group == 0 ? end : unit.group;
  const std::int64_t stride = unit.group == 0 ? 1 : unit.stride;
  const std::int64_t take = unit.group == 0 ? 1 : unit.take;
  std::vector<std::int64_t> order;
  for (std::int64_t begin = 0; begin < end; begin += group) {
    for (std::int64_t first = 0; first < stride; first += take) {
      for (std::int64_t k = 0; k < group; ++k) {
        if (k % stride < first || k % stride >= first + take) continue;
        order.push_back(begin + k < end ? begin + k : -1);
      }
    }
  }
  return order;
}

/// Returns the elements of x in the order `order`, a result of unit_order, with `lacking` for each
/// -1. Returns an empty vector if x is empty.
inline std::vector<float> in_order(std::span<const std::int64_t> order, std::span<const float> x,
                                   float lacking) {
  std::vector<float> values;
  if (x.empty()) return values;
  for (const std::int64_t k : order) {
    values.push_back(k < 0 ? lacking : x[static_cast<std::size_t>(k)]);
  }
  return values;
}

// --- Terms ---------------------------------------------------------------------------------------

/// Returns the exponent of x, or emin if the exponent is lower. x must be finite and not zero.
inline int block_exponent(const Exact& x, int emin) { return std::max(top_exponent(x), emin); }

/// One term of a block: its exact value, and the exponent by which the aligned adder shifts it.
struct BlockTerm {
  Exact value;
  int exponent = 0;
};

/// Returns x cut toward zero to a multiple of 2^quantum. Throws std::invalid_argument if a cut
/// number has more than 64 binary digits.
inline Exact cut(Exact x, int quantum) {
  const int drop = quantum - x.exponent;
  if (drop <= 0) return x;
  if (x.significand.bit_length() - drop > 64) throw std::invalid_argument("wider than 64 bits");
  return exact_finite(x.negative, x.significand.bits_from(drop), quantum);
}

/// The operands of a block of products: for each k two elements and, if the matrix unit takes
/// scales, two scales.
struct BlockOperands {
  std::span<const float> a, b;
  std::span<const float> a_scales{}, b_scales{};  ///< empty: all are 1

  BlockOperands part(std::size_t begin, std::size_t count) const {
    const auto cut = [&](std::span<const float> x) {
      return x.empty() ? x : x.subspan(begin, count);
    };
    return {cut(a), cut(b), cut(a_scales), cut(b_scales)};
  }
};

/// Returns the terms of a block in a matrix unit with scales: sums of `unit.dot` scaled products.
inline std::vector<BlockTerm> scaled_terms(const BlockFma& unit, const BlockOperands& x) {
  const auto scale = [&](std::span<const float> scales, std::size_t k) {
    return exact(scales.empty() ? 1.0f : std::fabs(scales[k]));
  };
  const auto exponent = [](const Exact& value, const Format& format) {
    const bool counts = value.kind == Exact::Kind::finite && !value.is_zero();
    return counts ? block_exponent(value, format.emin()) : 0;
  };
  std::vector<BlockTerm> terms;
  const auto dot = static_cast<std::size_t>(unit.dot);
  for (std::size_t begin = 0; begin < x.a.size(); begin += dot) {
    const Exact a_scale = scale(x.a_scales, begin);
    const Exact b_scale = scale(x.b_scales, begin);
    BlockTerm term{exact_finite(false, 0, 0),
                   exponent(a_scale, *unit.scale) + exponent(b_scale, *unit.scale)};
    for (std::size_t k = begin; k < std::min(x.a.size(), begin + dot); ++k) {
      term.value = add(term.value, multiply(exact(x.a[k]), exact(x.b[k])));
    }
    if (dot == 1) {
      term.exponent += exponent(exact(x.a[begin]), unit.a) + exponent(exact(x.b[begin]), unit.b);
    }
    term.value = multiply(term.value, multiply(a_scale, b_scale));
    if (term.value.kind == Exact::Kind::finite && term.value.is_zero()) {
      term.exponent = unit.min_exponent;
    }
    terms.push_back(term);
  }
  return terms;
}

/// Returns the terms of a block in a matrix unit without scales: one product for each k.
inline std::vector<BlockTerm> product_terms(const BlockFma& unit, const BlockOperands& x) {
  const int emin_a = spec_of(unit.a).emin();
  const int emin_b = spec_of(unit.b).emin();
  std::vector<BlockTerm> terms;
  for (std::size_t k = 0; k < x.a.size(); ++k) {
    const Exact a = exact(x.a[k]);
    const Exact b = exact(x.b[k]);
    const Exact value = multiply(a, b);
    const bool counts = value.kind == Exact::Kind::finite && !value.is_zero();
    terms.push_back({value, counts ? block_exponent(a, emin_a) + block_exponent(b, emin_b)
                                   : unit.min_exponent});
  }
  return terms;
}

/// Returns whether |x|, cut to the format's precision, exceeds the format's largest value.
inline bool passes_largest(const Spec& spec, const Exact& x) {
  const Exact largest = grid_value(spec, spec.max_code());
  const int quantum = block_exponent(largest, spec.emin()) - spec.man;
  return compare_magnitude(add(largest, exact_finite(false, 1, quantum)), x) <= 0;
}

/// Returns the exact total that Adder::aligned rounds after a block. All terms and the addend must
/// be finite.
inline Exact aligned_total(const BlockFma& unit, std::vector<BlockTerm> terms,
                           const Exact& addend) {
  if (unit.aligns_addend) {
    const bool counts = !addend.is_zero();
    terms.push_back(
        {addend, counts ? block_exponent(addend, spec_of(unit.sum).emin()) : unit.min_exponent});
  }
  int greatest = unit.min_exponent;
  for (const BlockTerm& term : terms) greatest = std::max(greatest, term.exponent);
  Exact total = exact_finite(false, 0, 0);
  for (const BlockTerm& term : terms) {
    total = add(total, cut(term.value, greatest - unit.fraction_bits));
  }
  return unit.aligns_addend ? total : add(total, addend);
}

// --- Other adders --------------------------------------------------------------------------------

/// Returns x rounded down (toward -Inf) to a multiple of 2^quantum.
inline Exact floor_to(const Exact& x, int quantum) {
  const Exact whole = cut(x, quantum);
  const bool exact = add(x, negate(whole)).is_zero();
  return exact || !x.negative ? whole : add(whole, exact_finite(true, 1, quantum));
}

/// A sum of cut products. Each product was cut to a multiple of 2^(exponent - fraction_bits).
struct CutSum {
  Exact value = exact_finite(false, 0, 0);
  int exponent = kNothing;
  static constexpr int kNothing = -999;  ///< the exponent where all products are zero
};

/// Returns the sum of terms first, first + step, …. Each term is cut toward zero to a multiple of
/// 2^(e - fraction_bits), where e is the greatest exponent of these terms.
inline CutSum cut_sum(const BlockFma& unit, std::span<const BlockTerm> terms, std::size_t first,
                      std::size_t step) {
  CutSum sum;
  for (std::size_t k = first; k < terms.size(); k += step) {
    if (!terms[k].value.is_zero()) sum.exponent = std::max(sum.exponent, terms[k].exponent);
  }
  for (std::size_t k = first; k < terms.size(); k += step) {
    sum.value = add(sum.value, cut(terms[k].value, sum.exponent - unit.fraction_bits));
  }
  return sum;
}

/// Returns the total that Adder::two_steps and two_steps_even round. Let e be the greatest of
/// min_exponent and of the exponents of the addend and the products' sum. The addend is rounded
/// down to a multiple of 2^(e - fraction_bits), the products' sum to a multiple of 2^(e -
/// fraction_bits - 8). Their total, of exponent t, is rounded down to a multiple of 2^(t -
/// fraction_bits - 7).
inline Exact two_step_total(const BlockFma& unit, std::span<const BlockTerm> terms,
                            const Exact& addend) {
  const bool halves = unit.adder == Adder::two_steps_even;
  const int f = unit.fraction_bits;
  CutSum products = cut_sum(unit, terms, 0, halves ? 2 : 1);
  if (halves) {
    const CutSum odd = cut_sum(unit, terms, 1, 2);
    const int exponent = std::max(products.exponent, odd.exponent);
    products.value = add(floor_to(products.value, exponent - f), floor_to(odd.value, exponent - f));
    products.exponent = exponent;
  }
  const int emin = spec_of(unit.sum).emin();
  const int of_addend = addend.is_zero() ? unit.min_exponent : block_exponent(addend, emin);
  const int greatest = std::max({products.exponent, of_addend, unit.min_exponent});
  const bool drops = halves && of_addend < greatest - f - 1;
  const Exact total = add(floor_to(products.value, greatest - f - 8),
                          drops ? exact_finite(false, 0, 0) : floor_to(addend, greatest - f));
  if (total.is_zero()) return total;
  return floor_to(total, block_exponent(total, emin) - f - 7);
}

/// Returns the sum by Adder::flushed_pairs, in binary32 sums. A subnormal result becomes a zero of
/// the same sign. A subnormal operand or addend becomes +0.
inline Exact flushed_sum(const BlockFma& unit, const BlockOperands& x, const Exact& addend) {
  const Spec sum = spec_of(unit.sum);
  const auto is_below = [](const Exact& value, const Spec& spec) {
    return value.kind == Exact::Kind::finite &&
           (value.is_zero() || top_exponent(value) < spec.emin());
  };
  const auto operand = [&](float value, const Format& format) {
    const Exact given = exact(value);
    return is_below(given, spec_of(format)) ? exact_finite(false, 0, 0) : given;
  };
  const auto rounded = [&](const Exact& value) {
    const Exact result = round_exact(sum, value);
    return is_below(result, sum) ? exact_finite(value.negative, 0, 0) : result;
  };
  std::vector<Exact> sums(static_cast<std::size_t>(unit.block), exact_finite(false, 0, 0));
  for (std::size_t k = 0; k < x.a.size(); ++k) {
    sums[k] = rounded(multiply(operand(x.a[k], unit.a), operand(x.b[k], unit.b)));
  }
  for (std::size_t n = sums.size(); n > 1; n /= 2) {
    for (std::size_t i = 0; i < n / 2; ++i) sums[i] = rounded(add(sums[2 * i], sums[2 * i + 1]));
  }
  return rounded(add(is_below(addend, sum) ? exact_finite(false, 0, 0) : addend, sums[0]));
}

// --- The rule ------------------------------------------------------------------------------------

/// Replaces each finite product of magnitude 2^128 or more by Inf, as the adders two_steps and
/// two_steps_even do.
inline void limit(std::vector<BlockTerm>& terms) {
  const Exact beyond = exact_finite(false, 1, 128);
  for (BlockTerm& term : terms) {
    if (term.value.kind == Exact::Kind::finite && compare_magnitude(term.value, beyond) >= 0) {
      term.value = exact_infinity(term.value.negative);
    }
  }
}

/// Returns the matrix unit's sum after one block of products, as defined in BlockFma.
inline Exact block_sum(const BlockFma& unit, const BlockOperands& x, const Exact& addend) {
  if (unit.adder == Adder::flushed_pairs) return flushed_sum(unit, x, addend);
  const Spec sum = spec_of(unit.sum);
  std::vector<BlockTerm> terms = unit.scale ? scaled_terms(unit, x) : product_terms(unit, x);
  const bool in_two_steps = unit.adder == Adder::two_steps || unit.adder == Adder::two_steps_even;
  if (in_two_steps) limit(terms);
  Exact special = addend.kind == Exact::Kind::finite ? exact_finite(false, 0, 0) : addend;
  for (const BlockTerm& term : terms) {
    if (term.value.kind != Exact::Kind::finite) special = add(special, term.value);
  }
  Options o;
  o.rounding = unit.rounding;
  if (special.kind != Exact::Kind::finite) return round_exact(sum, special, o);

  if (unit.adder == Adder::aligned) {
    const Exact total = aligned_total(unit, terms, addend);
    if (unit.sum.has_inf() && passes_largest(sum, total)) return exact_infinity(total.negative);
    const Exact rounded = round_exact(sum, total, o);
    return rounded.is_zero() ? exact_finite(false, 0, 0) : rounded;
  }
  Exact total = in_two_steps ? two_step_total(unit, terms, addend) : addend;
  if (unit.adder == Adder::exact) {
    for (const BlockTerm& term : terms) total = add(total, term.value);
  }
  if (total.is_zero()) total.negative = false;
  return round_exact(sum, total, o);
}

// --- One line ------------------------------------------------------------------------------------

/// Returns the sum of one line. Adds the products block by block, in the order of k that `order`
/// gives. A matrix unit that promotes adds its sum to an outer sum after every `promote` values of
/// k. `steps` has a function for each operation: addend(c) or, without promotion, addend_in_unit(c)
/// rounds c; block() adds a block of products; promoted() adds the matrix unit's sum to the outer
/// sum; result() rounds the result of a matrix unit without promotion.
template <class Steps>
Exact unit_sum(const Accumulator& accumulator, std::span<const std::int64_t> order,
               const BlockOperands& operands, float c, Steps& steps) {
  const BlockFma& unit = accumulator.unit.value();
  const std::vector<float> a = in_order(order, operands.a, 0.0f);
  const std::vector<float> b = in_order(order, operands.b, 0.0f);
  const std::vector<float> a_scales = in_order(order, operands.a_scales, 1.0f);
  const std::vector<float> b_scales = in_order(order, operands.b_scales, 1.0f);
  const BlockOperands all{a, b, a_scales, b_scales};
  const bool promotes = unit.promote > 0;
  const std::size_t depth = a.size();
  const std::size_t step = promotes ? static_cast<std::size_t>(unit.promote) : depth;
  const auto block = static_cast<std::size_t>(unit.block);
  const Exact zero = exact_finite(false, 0, 0);
  Exact outer = promotes ? steps.addend(exact(c)) : zero;
  Exact s = promotes ? zero : steps.addend_in_unit(exact(c));
  for (std::size_t begin = 0; begin < depth; begin += step) {
    const std::size_t end = std::min(depth, begin + step);
    for (std::size_t k = begin; k < end; k += block) {
      s = steps.block(all.part(k, std::min(end - k, block)), s);
    }
    if (!promotes) break;
    outer = steps.promoted(outer, s);
    s = zero;
  }
  return promotes ? outer : steps.result(s);
}

}  // namespace cpd::reference
