// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/oracle.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/oracle/flagged.h"
#include "cpd/oracle/reference_quotients.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using reference::Exact;
using reference::Spec;
using soft::Operation;

constexpr std::int64_t kLinesAtOnce = 1024;

/// CornersIn: an operand's class of corner (zero, subnormal, infinity, NaN); CornersOut: the
/// result's.
std::uint16_t CornersIn(const Spec& spec, const Exact& x) {
  if (x.is_nan()) return reference::bit(Corner::nan_in);
  if (x.is_infinite()) return reference::bit(Corner::infinity_in);
  if (x.is_zero()) return reference::bit(Corner::zero_in);
  return reference::top_exponent(x) < reference::least_exponent(spec)
             ? reference::bit(Corner::subnormal_in)
             : std::uint16_t{0};
}

std::uint16_t CornersOut(const Spec& spec, const Exact& exact, const Exact& result,
                         std::uint8_t flags) {
  std::uint16_t corners = flags == 0 ? reference::bit(Corner::exact) : std::uint16_t{0};
  if (result.is_nan()) return corners | reference::bit(Corner::nan_out);
  if (result.is_infinite()) return corners | reference::bit(Corner::infinity_out);
  if (result.is_zero()) {
    corners |= reference::bit(result.negative ? Corner::negative_zero : Corner::positive_zero);
  } else {
    const int top = reference::top_exponent(result);
    const bool is_below = !spec.is_integer() && top < reference::least_exponent(spec);
    if (is_below) corners |= reference::bit(Corner::subnormal_out);
    const Exact largest = reference::grid_value(spec, spec.max_code(result.negative));
    if (compare_magnitude(result, largest) == 0) corners |= reference::bit(Corner::largest);
  }
  return corners | reference::rounding_corners(spec, exact, result);
}

/// The results of a rounding.
struct Outcome {
  std::uint32_t code = 0;
  std::uint8_t flags = 0;
  std::uint16_t corners = 0;
};

/// A cache of outcomes of one rule by exact finite results, which lines of small formats share.
class Memo {
 public:
  struct Entry {
    std::uint64_t significand = 0;
    int exponent = 0;
    bool negative = false, used = false;
    Outcome outcome{};

    bool Is(const Exact& x) const {
      return used && significand == Significand(x) && exponent == x.exponent &&
             negative == x.negative;
    }
    void Keep(const Exact& x, const Outcome& made) {
      *this = {Significand(x), x.exponent, x.negative, true, made};
    }
  };

  static bool Keeps(const Exact& x) {
    return x.kind == Exact::Kind::finite && x.significand.bit_length() <= 64;
  }
  Entry& At(const Exact& x) {
    const std::uint64_t key =
        Significand(x) * 2 + (x.negative ? 1 : 0) + (static_cast<std::uint64_t>(x.exponent) << 40);
    return entries_[(key * 0x9E3779B97F4A7C15u) >> (64 - kBits)];
  }

 private:
  static std::uint64_t Significand(const Exact& x) {
    return std::uint64_t{x.significand.limb(1)} << 32 | x.significand.limb(0);
  }

  static constexpr int kBits = 12;
  std::vector<Entry> entries_ = std::vector<Entry>(std::size_t{1} << kBits);
};

/// Computes the lines of a rule, one at a time.
class Elements {
 public:
  explicit Elements(const ElementRule& rule)
      : rule_(rule),
        count_(soft::operands_of(rule.operation)),
        result_(reference::spec_of(rule.result)),
        options_{rule.rounding.mode, rule.rounding.overflow, rule.rounding.variant,
                 rule.rounding.random_bits, 0} {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      operands_[i] = reference::spec_of(rule.operands[i]);
    }
  }

  void Line(const ElementLines& lines, std::int64_t i, Memo& memo) const {
    std::array<Exact, 3> x;
    std::uint16_t corners = 0;
    bool any_nan = false;
    bool signals = false;
    for (std::size_t k = 0; k < static_cast<std::size_t>(count_); ++k) {
      x[k] = reference::value_of(operands_[k], lines.operands[k][i]);
      corners |= CornersIn(operands_[k], x[k]);
      any_nan = any_nan || x[k].is_nan();
      signals = signals || reference::is_signalling(operands_[k], lines.operands[k][i]);
    }
    reference::Options o = options_;
    if (lines.random != nullptr) o.random = lines.random[i];
    const Exact exact = Result(x, o, corners);
    const std::uint8_t of_nan = signals ? soft::kInvalid : std::uint8_t{0};
    const std::uint8_t raised = any_nan ? of_nan : Raised(x, exact);
    Outcome outcome;
    if (lines.random != nullptr || !Memo::Keeps(exact)) {
      outcome = Round(exact, o, raised);
    } else if (Memo::Entry& entry = memo.At(exact); entry.Is(exact)) {
      outcome = entry.outcome;
    } else {
      outcome = Round(exact, o, raised);
      entry.Keep(exact, outcome);
    }
    lines.codes[i] = outcome.code;
    lines.flags[i] = outcome.flags;
    lines.corners[i] = corners | outcome.corners;
  }

 private:
  Outcome Round(const Exact& exact, const reference::Options& o, std::uint8_t raised) const {
    const Exact result = reference::round_exact(result_, exact, o);
    const std::uint8_t flags =
        reference::flags_of(result_, exact, result, o, rule_.tininess, raised);
    return {reference::code_of(result_, result).value_or(kNoCode), flags,
            CornersOut(result_, exact, result, flags)};
  }

  /// The exceptions of an operation itself: invalid for NaN from numbers, division by zero.
  std::uint8_t Raised(const std::array<Exact, 3>& x, const Exact& exact) const {
    if (exact.is_nan()) return soft::kInvalid;
    const bool by_zero = rule_.operation == Operation::div && exact.is_infinite() && x[1].is_zero();
    return by_zero && !x[0].is_infinite() ? soft::kDivideByZero : std::uint8_t{0};
  }

  Exact Result(const std::array<Exact, 3>& x, const reference::Options& o,
               std::uint16_t& corners) const {
    if (rule_.operation == Operation::add) return Sum(x[0], x[1], o, corners);
    if (rule_.operation == Operation::fma) return Sum(multiply(x[0], x[1]), x[2], o, corners);
    return reference::result_of(rule_.operation, x[0], x[1], x[2]);
  }
  static Exact Sum(const Exact& x, const Exact& y, const reference::Options& o,
                   std::uint16_t& corners) {
    const Exact sum = reference::add_for(o, x, y);
    if (reference::cancels(x, y, sum)) corners |= reference::bit(Corner::cancellation);
    return sum;
  }

  ElementRule rule_;
  int count_;
  Spec result_;
  std::array<Spec, 3> operands_{};
  reference::Options options_;
};

void CheckBelow(const std::uint32_t* x, std::int64_t n, std::uint64_t limit, const char* name) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] < limit) continue;
    throw Error(std::string(name) + " " + std::to_string(i) + " must be below " +
                std::to_string(limit) + ", got " + std::to_string(x[i]));
  }
}

}  // namespace

void OracleElements(const ElementRule& rule, const ElementLines& lines) {
  Check(rule.result);
  Check(rule.rounding);
  const int count = soft::operands_of(rule.operation);
  for (int k = 0; k < count; ++k) {
    const Format& format = rule.operands[static_cast<std::size_t>(k)];
    Check(format);
    CheckBelow(lines.operands[static_cast<std::size_t>(k)], lines.n,
               std::uint64_t{1} << format.bits(), "code");
  }
  if (rule.rounding.mode == Rounding::stochastic) {
    if (lines.random == nullptr) throw Error("stochastic rounding takes a random integer a line");
    CheckBelow(lines.random, lines.n, std::uint64_t{1} << rule.rounding.random_bits,
               "random integer");
  }
  const Elements elements(rule);
  parallel_for(lines.n, kLinesAtOnce, kLinesAtOnce, [&](std::int64_t begin, std::int64_t end) {
    Memo memo;
    for (std::int64_t i = begin; i < end; ++i) elements.Line(lines, i, memo);
  });
}

}  // namespace cpd
