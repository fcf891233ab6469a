// SPDX-License-Identifier: Apache-2.0
//
// Checks the bits of a row's result. The benchmark programs do so before they time the row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/kernel_table.h"
#include "cpd/backend/roster.h"
#include "cpd/ops/cast.h"

namespace timing {

/// Runs the operation of a benchmark row on every backend. Returns a text that says what is wrong,
/// or an empty text. `check` runs the operation and returns how its result differs from the
/// expected one. `result` returns the result as bytes, which must be equal on all backends.
inline std::string CheckBackends(const std::function<std::string()>& check,
                                 const std::function<std::span<const std::uint8_t>()>& result) {
  std::vector<std::uint8_t> first;
  for (const cpd::KernelTable* table : cpd::AvailableKernels()) {
    cpd::ForceKernels(table->name);
    std::string wrong = check();
    const auto bytes = result();
    if (first.empty()) first.assign(bytes.begin(), bytes.end());
    if (!std::ranges::equal(first, bytes)) wrong = "another backend";
    if (!wrong.empty()) return std::string(table->name) + " differs from " + wrong;
  }
  cpd::ForceKernels("");
  return "";
}

inline std::string TheOracleAt(std::int64_t wrong) {
  return wrong < 0 ? "" : "the oracle at " + std::to_string(wrong);
}

/// Tests n elements in blocks of 256 that are spread over the whole array. Returns the first index
/// i for which is_right(i, random integer) is false, or -1.
inline std::int64_t FirstWrong(const cpd::RoundingOptions& options, std::int64_t n,
                               const std::function<bool(std::int64_t, std::uint32_t)>& is_right) {
  constexpr std::int64_t kBlock = cpd::kBlock;
  const std::int64_t blocks = n / kBlock;
  const std::int64_t checked = std::min<std::int64_t>(blocks, 24);
  for (std::int64_t k = 0; k < checked; ++k) {
    const std::int64_t begin = (checked == 1 ? 0 : (blocks - 1) * k / (checked - 1)) * kBlock;
    std::vector<std::uint32_t> random(kBlock);
    if (options.mode == cpd::Rounding::stochastic) {
      cpd::RandomIntegers(options, static_cast<std::uint64_t>(begin),
                          cpd::View(random.data(), cpd::DType::u32, kBlock));
    }
    for (std::int64_t i = 0; i < kBlock; ++i) {
      if (!is_right(begin + i, random[static_cast<std::size_t>(i)])) return begin + i;
    }
  }
  return -1;
}

}  // namespace timing
