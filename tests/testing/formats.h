// SPDX-License-Identifier: Apache-2.0
//
// Sets of formats and options that tests cover, and functions that convert options to the oracle's
// types.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpd/oracle/reference.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/error.h"
#include "cpd/spec/format.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"
#include "tests/testing/sanitized.h"

namespace cpd::testing {

inline constexpr std::array kDeterministicModes = {Rounding::nearest_even, Rounding::nearest_away,
                                                   Rounding::toward_zero,  Rounding::up,
                                                   Rounding::down,         Rounding::to_odd};
inline constexpr std::array kPolicies = {Overflow::ieee, Overflow::saturate};
inline constexpr std::array kVariants = {Variant::A, Variant::B, Variant::C};

/// The seed and the random stream that tests use by default. Neither number fits in 32 bits.
inline constexpr RandomKey kKey{.seed = 0x123456789ABCDEF0U, .stream = 0x3'0000'0007U};

inline RoundingOptions options_of(Rounding mode, Overflow overflow = Overflow::ieee) {
  RoundingOptions o;
  o.mode = mode;
  o.overflow = overflow;
  return o;
}

/// Returns whether every finite value of the format is a binary32 value. MakeFormat must accept
/// exactly these formats. The function uses only the oracle's list of values.
inline bool is_admissible(const reference::Spec& s) {
  if (s.encoding == Encoding::fnuz && !s.is_signed) return false;
  if (s.encoding == Encoding::p3109 && !s.is_signed && s.exp + s.man < 2) return false;
  if (s.emin() - s.man < -149 || s.emin() > 127) return false;
  const reference::Exact top = reference::grid_value(s, s.max_code());
  return top.is_zero() || top.significand.bit_length() + top.exponent <= 128;
}

inline int default_bias(int exp, Encoding encoding) {
  const bool wide = encoding == Encoding::fnuz || encoding == Encoding::p3109 ||
                    encoding == Encoding::p3109finite;
  return (1 << (exp - 1)) - (wide ? 0 : 1);
}

/// Returns the 8 * 24 formats with IEEE encoding, 1 … 8 exponent bits and 0 … 23 mantissa bits;
/// under a sanitizer, a seventh of them.
inline std::vector<Format> ieee_formats() {
  std::vector<Format> formats;
  for (int exp = 1; exp <= 8; ++exp) {
    for (int man = 0; man <= 23; ++man) formats.push_back(MakeFormat(exp, man));
  }
  return thinned(std::move(formats));
}

/// Returns every encoding at several widths and biases, signed and unsigned, with and without
/// subnormals.
inline std::vector<Format> encoding_formats() {
  std::vector<Format> formats;
  const auto consider = [&](int exp, int man, Encoding encoding, int bias, bool is_signed,
                            bool subnormals) {
    if (is_admissible({exp, man, bias, encoding, is_signed, subnormals})) {
      formats.push_back(MakeFormat(exp, man, encoding, bias, is_signed, subnormals));
    }
  };
  constexpr std::array<std::array<int, 2>, 12> kWidths = {{{1, 2},
                                                           {2, 0},
                                                           {2, 1},
                                                           {3, 2},
                                                           {3, 0},
                                                           {4, 3},
                                                           {5, 2},
                                                           {5, 10},
                                                           {6, 1},
                                                           {7, 23},
                                                           {8, 3},
                                                           {8, 7}}};
  for (const Encoding encoding : {Encoding::ieee, Encoding::fn, Encoding::fnuz, Encoding::p3109,
                                  Encoding::p3109finite, Encoding::finite}) {
    for (const auto& [exp, man] : kWidths) {
      const int usual = default_bias(exp, encoding);
      for (const int bias : {usual, usual - 5, usual + 4, -60, 90}) {
        for (const bool is_signed : {true, false}) {
          for (const bool subnormals : {true, false}) {
            consider(exp, man, encoding, bias, is_signed, subnormals);
          }
        }
      }
    }
  }
  formats.push_back(ParseFormat("e8m0"));
  for (const char* name :
       {"int2", "int2:full", "int8", "int8:full", "int16:full", "int25", "int25:full", "sm8",
        "e1m6int:bias=1", "e1m6int_full:bias=1", "e1m3int_full:bias=140", "e1m3int:bias=-110"}) {
    formats.push_back(ParseFormat(name));
  }
  return thinned(std::move(formats));
}

/// Returns the named formats of at most 32 bits.
inline std::vector<Format> named_formats() {
  std::vector<Format> formats;
  for (const char* name :
       {"e4m3",        "e5m2",        "e3m0",        "e6m9", "e4m3fn", "e4m3fnuz",    "e5m2fnuz",
        "e2m1",        "e2m3",        "e3m2",        "e3m4", "e8m0",   "binary8p4se", "binary8p3se",
        "binary8p3ue", "binary8p4uf", "binary8p4sf", "bf16", "fp16",   "tf32",        "fp32"}) {
    formats.push_back(ParseFormat(name));
  }
  return formats;
}

/// Returns the accumulators of one format: every scheme, chunks of several lengths, and two inner
/// formats.
inline std::vector<Accumulator> accumulators(const Format& format,
                                             const RoundingOptions& rounding) {
  std::vector<Accumulator> all;
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::pairwise}) {
    all.push_back({.format = format, .scheme = scheme, .rounding = rounding});
  }
  for (const std::int64_t chunk : {1, 3, 64}) {
    all.push_back({.format = format, .scheme = Scheme::chunked, .rounding = rounding});
    all.back().chunk = chunk;
    if (chunk == 3) all.back().inner = ParseFormat("e5m2");
  }
  return all;
}

inline reference::Options oracle_options(const RoundingOptions& o, std::uint32_t random = 0) {
  return {o.mode, o.overflow, o.variant, o.random_bits, random};
}

/// Returns a text for failure messages: format, mode and policy; if stochastic, also variant and N.
inline std::string describe(const Format& f, const RoundingOptions& o) {
  std::string text = ToString(f) + ", " + ToString(o.mode) + ", overflow " + ToString(o.overflow);
  if (o.mode == Rounding::stochastic) {
    text += ", variant " + ToString(o.variant) + ", N " + std::to_string(o.random_bits);
  }
  return text;
}

}  // namespace cpd::testing
