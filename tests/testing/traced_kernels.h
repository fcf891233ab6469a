// SPDX-License-Identifier: Apache-2.0
//
// Which functions of the kernels' table a call uses, and which paths the tiles of a product take.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "cpd/backend/roster.h"
#include "cpd/numeric/sums/fold_plan.h"

namespace cpd {
#ifdef CPD_ISA_AVX2
/// AVX2's products, which report the paths of their tiles (tests/CMakeLists.txt).
namespace traced {
void gemm(const GemmPlan& plan, const GemmBlock& block);
GemmPath gemm_path(const GemmPlan& plan, bool given);
}  // namespace traced
#endif

namespace testing {

namespace traced_kernels {

constexpr std::array kNames = {
    "round_f32",    "round_f64",         "round_bf16",    "round_rows",   "round_scaled",
    "encode_f32",   "encode_f64",        "decode_f32",    "arithmetic",   "arithmetic_f64",
    "fold",         "fold_f64",          "gemm",          "block_fma",    "fixed",
    "round_blocks", "round_blocks_bf16", "encode_blocks", "scale_blocks", "cast_power_blocks",
    "hadamard"};
constexpr std::size_t number_of(std::string_view name) {
  std::size_t i = 0;
  while (kNames[i] != name) ++i;
  return i;
}

}  // namespace traced_kernels

/// While it lives, Kernels() is a table that counts the calls of `real` by function.
class TracedKernels {
 public:
  explicit TracedKernels(const KernelTable& real) : table_(real) {
    real_ = &real;
    forget();
#define CPD_TRACED(member) \
  table_.member = &Traced<&KernelTable::member, traced_kernels::number_of(#member)>::Run
    CPD_TRACED(round_f32);
    CPD_TRACED(round_f64);
    CPD_TRACED(round_bf16);
    CPD_TRACED(round_rows);
    CPD_TRACED(round_scaled);
    CPD_TRACED(encode_f32);
    CPD_TRACED(encode_f64);
    CPD_TRACED(decode_f32);
    CPD_TRACED(arithmetic);
    CPD_TRACED(arithmetic_f64);
    CPD_TRACED(fold);
    CPD_TRACED(fold_f64);
    CPD_TRACED(gemm);
    CPD_TRACED(block_fma);
    CPD_TRACED(fixed);
    CPD_TRACED(round_blocks);
    CPD_TRACED(round_blocks_bf16);
    CPD_TRACED(encode_blocks);
    CPD_TRACED(scale_blocks);
    CPD_TRACED(cast_power_blocks);
    CPD_TRACED(hadamard);
#undef CPD_TRACED
    SetKernels(table_);
  }
  TracedKernels(const TracedKernels&) = delete;
  TracedKernels& operator=(const TracedKernels&) = delete;
  ~TracedKernels() { ForceKernels(""); }

  static void forget() {
    for (auto& count : counts_) count = 0;
  }
  /// The names of the functions that were called since.
  static std::set<std::string> called() {
    std::set<std::string> names;
    for (std::size_t i = 0; i < traced_kernels::kNames.size(); ++i) {
      if (counts_[i] > 0) names.insert(traced_kernels::kNames[i]);
    }
    return names;
  }

 private:
  template <auto kMember, std::size_t kNumber>
  struct Traced;
  template <class Result, class... Args, Result (*KernelTable::*kMember)(Args...),
            std::size_t kNumber>
  struct Traced<kMember, kNumber> {
    static Result Run(Args... args) {
      ++counts_[kNumber];
      return (real_->*kMember)(args...);
    }
  };

  inline static const KernelTable* real_ = nullptr;
  inline static std::array<std::atomic<int>, traced_kernels::kNames.size()> counts_{};
  KernelTable table_;
};

/// The paths that tiles of products of traced::gemm took, by Split's numbers.
inline std::array<std::atomic<int>, 16> tiles_of_path{};

}  // namespace testing
}  // namespace cpd
