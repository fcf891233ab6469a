// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/trace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

#include "cpd/base/parallel.h"
#include "cpd/oracle/block_trace.h"
#include "cpd/oracle/integer_trace.h"
#include "cpd/oracle/recording.h"
#include "cpd/oracle/reference_gemm.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using reference::Record;
using reference::Spec;

constexpr std::int64_t kGrain = 4;
constexpr std::int64_t kMostTerms = 1 << 20;

bool IsUnit(const SumRule& rule) { return rule.accumulator.scheme == Scheme::block_fma; }

bool IsInteger(const SumRule& rule) { return rule.accumulator.scheme == Scheme::fixed; }

std::size_t Terms(const SumRule& rule) { return static_cast<std::size_t>(rule.length); }

int BitsOf(const SumRule& rule, const std::string& step) {
  const Accumulator& accumulator = rule.accumulator;
  if (step == "product") return accumulator.product.value_or(accumulator.format).bits();
  if (step == "partial") return accumulator.inner.value_or(accumulator.format).bits();
  return accumulator.format.bits();
}

std::vector<std::string> Steps(const SumRule& rule) {
  return reference::step_names(rule.accumulator, Terms(rule), rule.is_sum);
}

void CheckRule(const SumRule& rule) {
  Check(rule.accumulator);
  Check(rule.a);
  if (!rule.is_sum) {
    Check(rule.b);
    Check(rule.c);
  }
  if (rule.length < 1 || rule.length > kMostTerms) {
    throw Error("length must be 1…2^20, got " + std::to_string(rule.length));
  }
  if (IsInteger(rule)) reference::CheckInteger(rule.accumulator.fixed.value());
  if (!IsUnit(rule)) return;
  if (rule.is_sum) throw Error("a matrix unit sums products, not terms");
  const BlockFma& unit = rule.accumulator.unit.value();
  if (HasTrace(rule)) {
    reference::CheckTrace(unit);
  } else if (rule.accumulator.rounding.mode == Rounding::stochastic) {
    throw Error("vectors of a unit that does not align every term round to nearest, not at random");
  }
  if (!Holds(unit.a, rule.a) || !Holds(unit.b, rule.b)) {
    throw Error("the unit's operands are " + ToString(unit.a) + " and " + ToString(unit.b) +
                ", got " + ToString(rule.a) + " and " + ToString(rule.b));
  }
}

/// Returns the value of a code. The value must be a binary32 number.
float ValueOf(const Spec& spec, std::uint32_t code) {
  const reference::Exact x = reference::value_of(spec, code);
  if (x.kind != reference::Exact::Kind::finite) return reference::to_float(x);
  const double magnitude = std::ldexp(static_cast<double>(x.significand.bits_from(0)), x.exponent);
  return static_cast<float>(x.negative ? -magnitude : magnitude);
}

std::vector<float> ValuesOf(const Format& format, const std::uint32_t* codes, std::size_t n) {
  std::vector<float> values(n);
  if (codes == nullptr) return {};
  const Spec spec = reference::spec_of(format);
  for (std::size_t i = 0; i < n; ++i) {
    if (codes[i] >= std::uint64_t{1} << format.bits()) {
      throw Error("a code of " + ToString(format) + " must have " + std::to_string(format.bits()) +
                  " bits, got " + std::to_string(codes[i]));
    }
    values[i] = ValueOf(spec, codes[i]);
  }
  return values;
}

class Lines {
 public:
  Lines(const SumRule& rule, const SumLines& lines)
      : rule_(rule), lines_(lines), draws_(static_cast<std::size_t>(DrawsOf(rule))) {
    for (const Signal& signal : SignalsOf(rule)) width_ += static_cast<std::size_t>(signal.count);
    if (IsUnit(rule) && HasTrace(rule)) {
      layout_.emplace(rule.accumulator, rule.length);
    } else if (!IsUnit(rule) && !IsInteger(rule)) {
      PlaceSteps();
    }
  }

  void Line(std::size_t i) const {
    const std::size_t n = Terms(rule_);
    Record record;
    record.tininess = rule_.tininess;
    if (draws_ > 0) {
      if (lines_.random == nullptr) {
        throw Error("stochastic rounding needs random, " + std::to_string(draws_) +
                    " integers a line, got none");
      }
      record.random = lines_.random + i * draws_;
      CheckRandom(record.random);
    }
    const std::vector<float> a = ValuesOf(rule_.a, lines_.a + i * n, n);
    std::uint64_t* signals = lines_.signals + i * width_;
    std::fill_n(signals, width_, std::uint64_t{0});
    std::uint32_t code = 0;
    if (IsUnit(rule_)) {
      UnitLine(i, a, record, signals);
      code = record.codes.back();
    } else if (IsInteger(rule_)) {
      IntegerLine(i, a, record, signals);
      if (!record.codes.empty()) code = record.codes.back();
    } else {
      code = OrderedLine(i, a, record);
      for (std::size_t t = 0; t < record.codes.size(); ++t) signals[places_[t]] = record.codes[t];
    }
    const bool has_codes = std::ranges::find(record.codes, kNoCode) == record.codes.end();
    lines_.codes[i] = has_codes ? code : kNoCode;
    const bool signals_nan = HasTrace(rule_) && Signals(i);
    lines_.flags[i] = record.flags | (signals_nan ? soft::kInvalid : 0);
    lines_.corners[i] = record.corners;
  }

 private:
  void CheckRandom(const std::uint32_t* random) const {
    const std::uint32_t limit = 1U << rule_.accumulator.rounding.random_bits;
    for (std::size_t t = 0; t < draws_; ++t) {
      if (random[t] < limit) continue;
      throw Error("a random integer must be below " + std::to_string(limit) + ", got " +
                  std::to_string(random[t]));
    }
  }

  reference::Options Options() const {
    const RoundingOptions& o = rule_.accumulator.rounding;
    return {o.mode, o.overflow, o.variant, o.random_bits, 0};
  }

  /// Computes line i of an ordered sum and returns the code of its result.
  std::uint32_t OrderedLine(std::size_t i, const std::vector<float>& a, Record& record) const {
    const Spec format = reference::spec_of(rule_.accumulator.format);
    const Scheme scheme = rule_.accumulator.scheme;
    const bool adds_products =
        scheme == Scheme::sequential || (scheme == Scheme::pairwise && Terms(rule_) == 1);
    const bool fused = rule_.accumulator.exact_products && adds_products;
    const reference::RecordingArithmetic arithmetic{&record, fused};
    const auto next = [o = Options()] { return o; };  // the record adds the random integers
    const auto code = [&](const reference::Exact& sum) {
      return reference::code_of(format, sum).value_or(kNoCode);
    };
    if (rule_.is_sum) {
      const auto term = [&](std::size_t k) { return reference::exact(a[k]); };
      const auto order = reference::order_of(rule_.accumulator);
      return code(reference::OrderedSum(order, a.size(), term, next, arithmetic).of_terms());
    }
    const std::size_t n = Terms(rule_);
    const std::vector<float> b = ValuesOf(rule_.b, lines_.b + i * n, n);
    const float c = ValuesOf(rule_.c, lines_.c + i, 1)[0];
    const auto start = arithmetic.rounded(format, reference::exact(c), next());
    return code(reference::sum_products(rule_.accumulator, a, b, start, next, arithmetic));
  }

  void IntegerLine(std::size_t i, const std::vector<float>& a, Record& record,
                   std::uint64_t* signals) const {
    reference::IntegerTrace trace(rule_.accumulator, record, Options());
    std::vector<reference::Exact> terms;
    if (rule_.is_sum) {
      for (const float x : a) terms.push_back(reference::exact(x));
    } else {
      const std::vector<float> b = ValuesOf(rule_.b, lines_.b + i * Terms(rule_), Terms(rule_));
      terms.push_back(trace.number_of(lines_.c_units[i]));
      for (std::size_t k = 0; k < a.size(); ++k) {
        terms.push_back(reference::RecordingArithmetic{&record}.product(a[k], b[k]));
      }
    }
    trace.run(terms, signals, !HasIntegerResult(rule_));
  }

  void UnitLine(std::size_t i, const std::vector<float>& a, Record& record,
                std::uint64_t* signals) const {
    const BlockFma& unit = *rule_.accumulator.unit;
    const std::size_t n = Terms(rule_);
    const std::vector<float> b = ValuesOf(rule_.b, lines_.b + i * n, n);
    const float c = ValuesOf(rule_.c, lines_.c + i, 1)[0];
    std::vector<float> a_scales, b_scales;
    if (unit.scale) {
      a_scales = Scales(lines_.a_scales, i);
      b_scales = Scales(lines_.b_scales, i);
    }
    const reference::BlockOperands operands{a, b, a_scales, b_scales};
    if (layout_) {
      reference::UnitTrace trace(rule_.accumulator, *layout_, record, Options());
      return trace.run(operands, c, signals);
    }
    reference::Draws draws(rule_.accumulator.rounding, {},
                           0);  // unused: rounding is not stochastic
    const float sum = reference::dot_block_fma(rule_.accumulator, operands, c, draws);
    const Spec format = reference::spec_of(rule_.accumulator.format);
    record.codes.push_back(
        reference::code_of(format, reference::round_exact(format, reference::exact(sum)))
            .value_or(kNoCode));
  }

  /// Returns whether an operand of line i is a signaling NaN.
  bool Signals(std::size_t i) const {
    const std::size_t n = Terms(rule_);
    const auto any = [](const Format& format, const std::uint32_t* codes, std::size_t count) {
      const Spec spec = reference::spec_of(format);
      return std::any_of(codes, codes + count,
                         [&](std::uint32_t code) { return reference::is_signalling(spec, code); });
    };
    if (any(rule_.a, lines_.a + i * n, n)) return true;
    if (!rule_.is_sum && any(rule_.b, lines_.b + i * n, n)) return true;
    return lines_.c != nullptr && any(rule_.c, lines_.c + i, 1);  // null where c is an integer
  }

  /// Returns the scales of line i: one scale for each k, with each block's scale repeated.
  std::vector<float> Scales(const std::uint32_t* codes, std::size_t i) const {
    const BlockFma& unit = *rule_.accumulator.unit;
    const auto block = static_cast<std::size_t>(unit.scale_block);
    const std::size_t blocks = (Terms(rule_) + block - 1) / block;
    const std::vector<float> values = ValuesOf(*unit.scale, codes + i * blocks, blocks);
    std::vector<float> each(Terms(rule_));
    for (std::size_t k = 0; k < each.size(); ++k) each[k] = values[k / block];
    return each;
  }

  /// Finds the index at which each rounding's code is stored among a line's signals. The signals
  /// are ordered by name; the roundings are in program order.
  void PlaceSteps() {
    const std::vector<std::string> steps = Steps(rule_);
    places_.resize(steps.size());
    std::size_t place = 0;
    for (const Signal& signal : SignalsOf(rule_)) {
      for (std::size_t t = 0; t < steps.size(); ++t) {
        if (steps[t] == signal.name) places_[t] = place++;
      }
    }
  }

  const SumRule& rule_;
  const SumLines& lines_;
  std::size_t draws_;
  std::size_t width_ = 0;
  std::vector<std::size_t> places_;
  std::optional<reference::UnitLayout> layout_;
};

}  // namespace

bool HasTrace(const SumRule& rule) {
  return !IsUnit(rule) || rule.accumulator.unit.value().adder == Adder::aligned;
}

bool HasIntegerResult(const SumRule& rule) {
  return IsInteger(rule) && rule.accumulator.format == kFp32;
}

std::vector<Signal> SignalsOf(const SumRule& rule) {
  CheckRule(rule);
  if (!HasTrace(rule)) return {};
  if (IsUnit(rule)) return reference::unit_signals(rule.accumulator, rule.length);
  if (IsInteger(rule)) {
    const int terms = static_cast<int>(rule.length) + (rule.is_sum ? 0 : 1);
    return reference::integer_signals(rule.accumulator.fixed.value(), terms);
  }
  std::vector<Signal> signals;
  for (const std::string& step : Steps(rule)) {
    const auto known = std::ranges::find(signals, step, &Signal::name);
    if (known != signals.end()) {
      ++known->count;
    } else {
      signals.push_back({step, BitsOf(rule, step), 1, false});
    }
  }
  return signals;
}

std::int64_t DrawsOf(const SumRule& rule) {
  CheckRule(rule);
  if (rule.accumulator.rounding.mode != Rounding::stochastic) return 0;
  if (!IsUnit(rule)) return static_cast<std::int64_t>(Steps(rule).size());
  const std::int64_t promote = rule.accumulator.unit->promote;
  return 1 + (promote == 0 ? 1 : (rule.length + promote - 1) / promote);
}

void OracleSums(const SumRule& rule, const SumLines& lines) {
  const Lines each(rule, lines);
  parallel_for(lines.n, kGrain, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) each.Line(static_cast<std::size_t>(i));
  });
}

}  // namespace cpd
