// SPDX-License-Identifier: Apache-2.0
//
// Records which functions of the kernel table a call uses, and which paths the tiles of a product
// take.
#pragma once

#include <algorithm>
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
/// AVX2's product kernels, compiled so that they report the paths of their tiles
/// (tests/CMakeLists.txt).
namespace traced {
void gemm(const GemmPlan& plan, const GemmBlock& block);
GemmPath gemm_path(const GemmPlan& plan, bool given);
}  // namespace traced
#endif

namespace testing {

/// The names of the kernels, in the order of operations.def.
constexpr std::array kKernelNames = {
#define CPD_CPU(Result, name, ...) #name,
#include "cpd/backend/operations.def"
};
constexpr std::size_t kernel_number(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(kKernelNames, name) - kKernelNames.begin());
}

/// The kernels that the explanation of a call (cpd.explain) can name. Other kernels only prepare
/// operands for these.
constexpr std::array kExplained = {"cast",
                                   "encode",
                                   "decode",
                                   "arithmetic",
                                   "fold",
                                   "gemm",
                                   "fixed",
                                   "round_blocks",
                                   "encode_blocks",
                                   "block_fma",
                                   "flags",
                                   "scale_blocks",
                                   "cast_power_blocks",
                                   "hadamard"};

/// Makes Kernels() return, while the object lives, a table that counts the calls of each function
/// of `real`.
class TracedKernels {
 public:
  explicit TracedKernels(const KernelTable& real) : table_(real) {
    real_ = &real;
    forget();
#define CPD_CPU(Result, name, ...) \
  table_.name = &Traced<&KernelTable::name, kernel_number(#name)>::Run;
#include "cpd/backend/operations.def"
    SetKernels(table_);
  }
  TracedKernels(const TracedKernels&) = delete;
  TracedKernels& operator=(const TracedKernels&) = delete;
  ~TracedKernels() { ForceKernels(""); }

  static void forget() {
    for (auto& count : counts_) count = 0;
  }
  /// Returns the names of the kernels in kExplained that were called after the last forget().
  static std::set<std::string> called() {
    std::set<std::string> names;
    for (const char* name : kExplained) {
      if (counts_[kernel_number(name)] > 0) names.insert(name);
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
  inline static std::array<std::atomic<int>, kKernelNames.size()> counts_{};
  KernelTable table_;
};

/// The number of tiles that took each path in traced::gemm, indexed by FastPath.
inline std::array<std::atomic<int>, 16> tiles_of_path{};

}  // namespace testing
}  // namespace cpd
