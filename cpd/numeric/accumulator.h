// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/numeric/format.h"
#include "cpd/numeric/rounding.h"

namespace cpd {

enum class Scheme : std::uint8_t {
  sequential,  ///< s = round(s + x)
  kahan,       ///< y = x - c; t = s + y; c = (t - s) - y; s = t; each operation rounded
};

/// An ordered sum: its format, its scheme, and how each of its operations is rounded.
struct Accumulator {
  Format format = kFp32;
  Scheme scheme = Scheme::sequential;
  RoundingOptions rounding{};
};

CPD_API Scheme ParseScheme(std::string_view name);
CPD_API std::string ToString(Scheme scheme);

}  // namespace cpd
