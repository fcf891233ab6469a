// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/dpi.h"

#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "cpd/oracle/oracle.h"
#include "cpd/oracle/trace.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// A dot product and the codes of its operands.
struct Dot {
  SumRule rule;
  std::vector<std::uint32_t> a, b, a_scales, b_scales;
};

/// Owns the objects to which handles refer. Handles are never released.
struct Registry {
  std::mutex mutex;
  std::deque<ElementRule> rules;
  std::deque<Dot> dots;
};

Registry& TheRegistry() {
  static Registry registry;
  return registry;
}

std::string& LastError() {
  thread_local std::string text;
  return text;
}

/// Runs body(registry) under the registry's lock and returns the result of `body`. On an exception,
/// stores the message in LastError() and returns -1.
template <class Body>
int Locked(Body body) {
  try {
    Registry& registry = TheRegistry();
    const std::lock_guard lock(registry.mutex);
    return body(registry);
  } catch (const std::exception& error) {
    LastError() = error.what();
    return -1;
  }
}

template <class T>
T& At(std::deque<T>& all, int number, const char* what) {
  if (number < 0 || static_cast<std::size_t>(number) >= all.size()) {
    throw Error(std::string("there is no ") + what + " " + std::to_string(number));
  }
  return all[static_cast<std::size_t>(number)];
}

std::uint32_t& At(std::vector<std::uint32_t>& all, int k, const char* what) {
  if (k < 0 || static_cast<std::size_t>(k) >= all.size()) {
    throw Error(std::string(what) + " must be at least 0 and below " + std::to_string(all.size()) +
                ", got " + std::to_string(k));
  }
  return all[static_cast<std::size_t>(k)];
}

const char* Text(const char* text) {
  if (text == nullptr) throw Error("a text must not be null");
  return text;
}

void Put(std::uint32_t code, std::uint8_t raised, std::uint32_t* result, std::uint32_t* flags) {
  if (code == kNoCode) throw Error("the result is NaN, and its format has no code for it");
  if (result != nullptr) *result = code;
  if (flags != nullptr) *flags = raised;
}

/// Makes a dot product whose operands are all zero. If the accumulator's unit takes scales, all
/// scales are 1. Throws Error for parameters that are invalid or that the DPI functions do not
/// support.
Dot MakeDot(const char* operand, const char* accumulator, int length) {
  Dot dot;
  SumRule& rule = dot.rule;
  rule.accumulator = ParseAccumulator(Text(accumulator));
  if (rule.accumulator.rounding.mode == Rounding::stochastic) {
    throw Error("no random integers are given here: take another rounding");
  }
  rule.a = rule.b = ParseFormat(Text(operand));
  rule.c = rule.accumulator.format;
  if (rule.accumulator.fixed && rule.accumulator.fixed->width > 32) {
    throw Error("integers have at most 32 bits here, got " + ToString(rule.accumulator));
  }
  rule.length = length;
  Check(rule.accumulator);
  if (length < 1 || length > 1 << 20) {
    throw Error("length must be 1…2^20, got " + std::to_string(length));
  }
  dot.a.resize(static_cast<std::size_t>(length));
  dot.b = dot.a;
  const auto& unit = rule.accumulator.unit;
  if (unit && unit->scale) {
    const int blocks = (length + unit->scale_block - 1) / unit->scale_block;
    const Format& scale = *unit->scale;  // the code of 1 is the bias in the exponent's field
    const auto one = static_cast<std::uint32_t>(scale.bias) << scale.man;
    dot.a_scales.assign(static_cast<std::size_t>(blocks), one);
    dot.b_scales = dot.a_scales;
  }
  return dot;
}

}  // namespace
}  // namespace cpd

extern "C" {

int cpd_dpi_rule(const char* operation, const char* operand, const char* result,
                 const char* rounding, int random_bits) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    ElementRule rule;
    rule.operation = soft::ParseOperation(Text(operation));
    rule.operands.fill(ParseFormat(Text(operand)));
    rule.result = ParseFormat(Text(result));
    rule.rounding.mode = ParseRounding(Text(rounding));
    if (rule.rounding.mode == Rounding::stochastic) rule.rounding.random_bits = random_bits;
    Check(rule.operands[0]);
    Check(rule.result);
    Check(rule.rounding);
    registry.rules.push_back(rule);
    return static_cast<int>(registry.rules.size()) - 1;
  });
}

int cpd_dpi_compute(int number, uint32_t a, uint32_t b, uint32_t c, uint32_t r, uint32_t* result,
                    uint32_t* flags) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    const ElementRule& rule = At(registry.rules, number, "rule");
    std::uint32_t code = 0;
    std::uint8_t raised = 0;
    std::uint16_t corners = 0;
    ElementLines lines;
    lines.n = 1;
    lines.operands = {&a, &b, &c};
    if (rule.rounding.mode == Rounding::stochastic) lines.random = &r;
    lines.codes = &code;
    lines.flags = &raised;
    lines.corners = &corners;
    OracleElements(rule, lines);
    Put(code, raised, result, flags);
    return 0;
  });
}

int cpd_dpi_dot(const char* operand, const char* accumulator, int length) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    registry.dots.push_back(MakeDot(operand, accumulator, length));
    return static_cast<int>(registry.dots.size()) - 1;
  });
}

int cpd_dpi_set(int number, int k, uint32_t a, uint32_t b) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    Dot& dot = At(registry.dots, number, "dot product");
    At(dot.a, k, "k") = a;
    At(dot.b, k, "k") = b;
    return 0;
  });
}

int cpd_dpi_set_scales(int number, int block, uint32_t a_scale, uint32_t b_scale) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    Dot& dot = At(registry.dots, number, "dot product");
    if (dot.a_scales.empty()) throw Error("this accumulator takes no scales");
    At(dot.a_scales, block, "block") = a_scale;
    At(dot.b_scales, block, "block") = b_scale;
    return 0;
  });
}

int cpd_dpi_sum(int number, uint32_t c, uint32_t* result, uint32_t* flags) {
  using namespace cpd;
  return Locked([&](Registry& registry) {
    const Dot& dot = At(registry.dots, number, "dot product");
    if (flags != nullptr && !HasTrace(dot.rule)) {
      throw Error("a unit that does not align every term has no flags: pass null for them");
    }
    std::size_t count = 0;
    for (const Signal& signal : SignalsOf(dot.rule))
      count += static_cast<std::size_t>(signal.count);
    std::vector<std::uint64_t> signals(count);
    std::uint32_t code = 0;
    std::uint8_t raised = 0;
    std::uint16_t corners = 0;
    SumLines lines;
    lines.n = 1;
    lines.a = dot.a.data();
    lines.b = dot.b.data();
    lines.c = &c;
    const std::uint64_t c_units = c;
    lines.c_units = &c_units;
    if (!dot.a_scales.empty()) {
      lines.a_scales = dot.a_scales.data();
      lines.b_scales = dot.b_scales.data();
    }
    lines.codes = &code;
    lines.flags = &raised;
    lines.corners = &corners;
    lines.signals = signals.data();
    OracleSums(dot.rule, lines);
    if (HasIntegerResult(dot.rule)) code = static_cast<std::uint32_t>(signals.back());
    Put(code, raised, result, flags);
    return 0;
  });
}

const char* cpd_dpi_error(void) { return cpd::LastError().c_str(); }

}  // extern "C"
