// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/oracle.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "cpd/base/parallel.h"
#include "cpd/oracle/flagged.h"
#include "cpd/oracle/outcome.h"
#include "cpd/oracle/reference_quotients.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using reference::Natural;
using reference::Number;
using reference::Outcome;
using Short = reference::ShortNatural<std::uint64_t>;
using Medium = reference::ShortNatural<reference::Digits>;
using reference::Spec;
using soft::Operation;

constexpr std::int64_t kLinesAtOnce = 1024;

/// The oracle tabulates a rule if the inputs of a line have at most this number of bits in all.
constexpr int kMostTableBits = 16;

/// Returns whether Integer has enough bits for x + y and for the intermediate results of rounding
/// it.
template <class Integer>
bool HoldsSum(const Number<Integer>& x, const Number<Integer>& y) {
  if (!reference::counts(x) || !reference::counts(y)) return true;
  const int top = std::max(reference::top_exponent(x), reference::top_exponent(y));
  return top - std::min(x.exponent, y.exponent) < Integer::kBits - 4;
}

/// The codes of one line's operands, and the line's random integer.
struct Codes {
  std::array<std::uint32_t, 3> operands{};
  std::uint32_t random = 0;
};

/// Computes an element-wise operation with exact numbers, one line (the codes of its operands) per
/// call.
class Elements {
 public:
  explicit Elements(const ElementRule& rule)
      : rule_(rule),
        count_(static_cast<std::size_t>(soft::operands_of(rule.operation))),
        result_(reference::spec_of(rule.result)),
        options_{rule.rounding.mode, rule.rounding.overflow, rule.rounding.variant,
                 rule.rounding.random_bits, 0} {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      operands_[i] = reference::spec_of(rule.operands[i]);
    }
  }

  /// Computes a line with the shortest integers that suffice. The outcome is the same with any
  /// integer type. A product of two significands has at most 50 bits, a quotient or a square root
  /// 126; a sum has no such limit.
  [[nodiscard]] Outcome Line(const Codes& codes) const {
    const bool is_quotient =
        rule_.operation == Operation::div || rule_.operation == Operation::sqrt;
    return is_quotient ? Line<Medium>(codes) : Line<Short>(codes);
  }

 private:
  template <class Integer>
  [[nodiscard]] Outcome Line(const Codes& codes) const {
    std::array<Number<Integer>, 3> x;
    std::uint16_t corners = 0;
    bool any_nan = false;
    bool signals = false;
    for (std::size_t k = 0; k < count_; ++k) {
      x[k] = reference::value_of<Integer>(operands_[k], codes.operands[k]);
      corners |= reference::corners_in(operands_[k], x[k]);
      any_nan = any_nan || x[k].is_nan();
      signals =
          signals || (x[k].is_nan() && reference::is_signalling(operands_[k], codes.operands[k]));
    }
    if (rule_.operation == Operation::fma) x = {multiply(x[0], x[1]), x[2]};
    const bool is_sum = rule_.operation == Operation::add || rule_.operation == Operation::fma;
    if constexpr (!std::is_same_v<Integer, Natural>) {
      using Longer = std::conditional_t<std::is_same_v<Integer, Short>, Medium, Natural>;
      if (is_sum && !HoldsSum(x[0], x[1])) return Line<Longer>(codes);
    }
    reference::Options o = options_;
    o.random = codes.random;
    const Number<Integer> exact = is_sum ? reference::add_for(o, x[0], x[1])
                                         : reference::result_of(rule_.operation, x[0], x[1], x[2]);
    if (is_sum && reference::cancels(x[0], x[1], exact)) {
      corners |= reference::bit(Corner::cancellation);
    }
    const std::uint8_t of_nan = signals ? soft::kInvalid : std::uint8_t{0};
    const std::uint8_t raised = any_nan ? of_nan : Raised(x, exact);
    Outcome made = Round(exact, o, raised);
    made.corners |= corners;
    return made;
  }

  template <class Integer>
  [[nodiscard]] Outcome Round(const Number<Integer>& exact, const reference::Options& o,
                              std::uint8_t raised) const {
    if (reference::counts(exact)) {
      const auto made = reference::outcome_by_shifts(result_, exact, o, rule_.tininess);
      if (made) return *made;
    }
    const Number<Integer> result = reference::round_exact(result_, exact, o);
    const std::uint8_t flags =
        reference::flags_of(result_, exact, result, o, rule_.tininess, raised);
    return {reference::code_of(result_, result).value_or(kNoCode), flags,
            reference::corners_out(result_, exact, result, flags)};
  }

  /// Returns the exceptions of the operation itself: invalid if the result is NaN, division by zero
  /// if a finite number is divided by 0. The operands must not be NaN.
  template <class Integer>
  [[nodiscard]] std::uint8_t Raised(const std::array<Number<Integer>, 3>& x,
                                    const Number<Integer>& exact) const {
    if (exact.is_nan()) return soft::kInvalid;
    const bool by_zero = rule_.operation == Operation::div && exact.is_infinite() && x[1].is_zero();
    return by_zero && !x[0].is_infinite() ? soft::kDivideByZero : std::uint8_t{0};
  }

  ElementRule rule_;
  std::size_t count_;
  Spec result_;
  std::array<Spec, 3> operands_{};
  reference::Options options_;
};

void CheckBelow(const std::uint32_t* x, std::int64_t n, std::uint64_t limit, const char* name) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, x[i]);
  if (n == 0 || most < limit) return;
  const std::uint32_t* first = std::find_if(x, x + n, [&](auto code) { return code >= limit; });
  throw Error(std::string(name) + " " + std::to_string(first - x) + " must be below " +
              std::to_string(limit) + ", got " + std::to_string(*first));
}

class OracleOf final : public ElementOracle {
 public:
  explicit OracleOf(const ElementRule& rule)
      : elements_(rule), count_(static_cast<std::size_t>(soft::operands_of(rule.operation))) {
    Check(rule.result);
    Check(rule.rounding);
    for (std::size_t k = 0; k < count_; ++k) {
      Check(rule.operands[k]);
      bits_[k] = rule.operands[k].bits();
    }
    is_random_ = rule.rounding.mode == Rounding::stochastic;
    if (is_random_) bits_[3] = rule.rounding.random_bits;
    for (const int bits : bits_) all_bits_ += bits;
  }

  void Compute(const ElementLines& lines) override {
    for (std::size_t k = 0; k < count_; ++k) {
      CheckBelow(lines.operands[k], lines.n, std::uint64_t{1} << bits_[k], "code");
    }
    if (is_random_) {
      if (lines.random == nullptr) {
        throw Error("stochastic rounding needs random, an integer a line, got none");
      }
      CheckBelow(lines.random, lines.n, std::uint64_t{1} << bits_[3], "random integer");
    }
    const bool looks_up = all_bits_ <= kMostTableBits && lines.n >= std::int64_t{1} << all_bits_;
    if (looks_up) std::call_once(is_made_, [this] { MakeTable(); });
    parallel_for(lines.n, kLinesAtOnce, kLinesAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Codes codes = CodesOf(lines, i);
        const Outcome made = looks_up ? table_[Place(codes)] : elements_.Line(codes);
        lines.codes[i] = made.code;
        lines.flags[i] = made.flags;
        lines.corners[i] = made.corners;
      }
    });
  }

 private:
  [[nodiscard]] Codes CodesOf(const ElementLines& lines, std::int64_t i) const {
    Codes codes;
    for (std::size_t k = 0; k < count_; ++k) codes.operands[k] = lines.operands[k][i];
    if (is_random_) codes.random = lines.random[i];
    return codes;
  }

  /// Returns the table index of a line: the operands' codes, then the random integer, concatenated.
  [[nodiscard]] std::size_t Place(const Codes& codes) const {
    std::size_t place = 0;
    for (std::size_t k = 0; k < count_; ++k) place = place << bits_[k] | codes.operands[k];
    return place << bits_[3] | codes.random;
  }

  [[nodiscard]] Codes CodesAt(std::size_t place) const {
    const auto take = [&](int bits) {
      const auto code = static_cast<std::uint32_t>(place & ((std::size_t{1} << bits) - 1));
      place >>= bits;
      return code;
    };
    Codes codes;
    codes.random = take(bits_[3]);
    for (std::size_t k = count_; k-- > 0;) codes.operands[k] = take(bits_[k]);
    return codes;
  }

  void MakeTable() {
    table_.resize(std::size_t{1} << all_bits_);
    const auto size = static_cast<std::int64_t>(table_.size());
    parallel_for(size, kLinesAtOnce, kLinesAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        table_[i] = elements_.Line(CodesAt(i));
      }
    });
  }

  Elements elements_;
  std::size_t count_;
  std::array<int, 4> bits_{};  ///< of each operand and of the random integer
  int all_bits_ = 0;
  bool is_random_ = false;
  std::vector<Outcome> table_;
  std::once_flag is_made_;
};

}  // namespace

std::unique_ptr<ElementOracle> MakeElementOracle(const ElementRule& rule) {
  return std::make_unique<OracleOf>(rule);
}

void OracleElements(const ElementRule& rule, const ElementLines& lines) {
  OracleOf(rule).Compute(lines);
}

}  // namespace cpd
