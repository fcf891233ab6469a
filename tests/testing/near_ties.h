// SPDX-License-Identifier: Apache-2.0
//
// Makes fused multiply-adds whose exact result lies next to a tie of a format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "cpd/oracle/reference.h"

namespace cpd::testing {

/// Operands for rows * columns fused multiply-adds, a[row] * b[row][column] + c[row][column], which
/// test the rounding of results near ties.
struct FmaProblems {
  std::size_t rows = 0, columns = 0;
  std::vector<float> a, b, c;
  std::size_t near_ties = 0;  ///< of them lie within 2^-30 (relative to the tie), ties included
};

/// Makes problems for a format of at most 12 significant bits. c is a value of the format; a and b
/// are binary32 numbers with up to 24 significant bits. In five columns of eight, a * b + c lies
/// within 2^-30 of a tie, if 300 random tries find such a problem. The other columns are random.
class NearTies {
 public:
  NearTies(const reference::Spec& spec, std::uint64_t seed) : spec_(spec), generator_(seed) {}

  FmaProblems make(std::size_t rows, std::size_t columns) {
    FmaProblems p;
    p.rows = rows;
    p.columns = columns;
    for (std::size_t row = 0; row < rows; ++row) {
      p.a.push_back(std::ldexp(static_cast<float>(random_significand()), -23) * sign());
      for (std::size_t column = 0; column < columns; ++column) {
        const bool wanted = column % 8 < 5;
        const Problem found = wanted ? next_to_tie(p.a.back()) : anywhere();
        p.b.push_back(found.b);
        p.c.push_back(found.c);
        p.near_ties += found.distance <= 0x1p-30 ? 1 : 0;
      }
    }
    return p;
  }

 private:
  struct Problem {
    float b = 0, c = 0;
    double distance = 1;  // of a * b + c from the tie, relative to the tie
  };

  std::uint64_t random_significand() { return (generator_() & 0x7FFFFF) | 0x800001; }
  float sign() { return (generator_() & 1) != 0 ? -1.0f : 1.0f; }

  double grid(std::uint64_t code) const {
    const reference::Exact x = reference::grid_value(spec_, code);
    return std::ldexp(static_cast<double>(x.significand.bits_from(0)), x.exponent);
  }

  Problem anywhere() {
    const std::uint64_t code = generator_() % (spec_.max_code() + 1);
    const double value = grid(code);
    const double scale = value == 0 ? std::ldexp(1.0, spec_.emin()) : value;
    const auto b = std::ldexp(static_cast<float>(random_significand()),
                              std::ilogb(scale) - 23 - static_cast<int>(generator_() % 5) + 2);
    return {b * sign(), static_cast<float>(value) * sign(), 1};
  }

  Problem next_to_tie(float a) {
    Problem best;
    for (int tries = 0; tries < 300 && best.distance > 0x1p-30; ++tries) {
      const Problem found = one_try(a);
      if (found.distance < best.distance) best = found;
    }
    return best;
  }

  Problem one_try(float a) {
    const std::uint64_t code = generator_() % spec_.max_code();
    const double tie = (grid(code) + grid(code + 1)) / 2;
    const std::uint64_t span = std::uint64_t{7} << spec_.man;
    const std::uint64_t low = code > span ? code - span : 0;
    const std::uint64_t of_c = std::min(low + generator_() % (2 * span), spec_.max_code());
    const double c = grid(of_c) * static_cast<double>(sign());
    const double target = tie - c;  // exact: few bits of like size
    if (target == 0 || tie == 0) return {};
    // Computes b = target / a, rounded to 24 bits.
    const double quotient = target / static_cast<double>(a);
    const int exponent = std::ilogb(quotient) - 23;
    if (exponent < -149 || exponent > 104) return {};
    const double b = std::ldexp(std::nearbyint(std::ldexp(quotient, -exponent)), exponent);
    const double error = b * static_cast<double>(a) - target;  // the product's 48 bits are exact
    return {static_cast<float>(b), static_cast<float>(c), std::fabs(error) / tie};
  }

  reference::Spec spec_;
  std::mt19937_64 generator_;
};

}  // namespace cpd::testing
