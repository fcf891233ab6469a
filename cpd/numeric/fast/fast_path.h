// SPDX-License-Identifier: Apache-2.0
//
// Names and sets of the fast paths (paths.def). A fast path gives the general path's bits in fewer
// operations, for the values within its bounds.
#pragma once

#include <cstdint>

namespace cpd {

/// A fast path by its row in paths.def; none: the general path.
enum class FastPath : std::uint8_t {
  none,
#define CPD_FAST_SUM(name, Path) name,
#define CPD_FAST_LANES(name, Path) name,
#define CPD_FAST_CUDA(name) name,
#include "cpd/numeric/fast/paths.def"
};

/// The paths' names, each at its enumerator's place.
inline constexpr const char* kFastPathNames[] = {
    "general",
#define CPD_FAST_SUM(name, Path) #name,
#define CPD_FAST_LANES(name, Path) #name,
#define CPD_FAST_CUDA(name) #name,
#include "cpd/numeric/fast/paths.def"
};
inline constexpr int kFastPaths = sizeof(kFastPathNames) / sizeof(kFastPathNames[0]);

/// A set of fast paths; by default all.
class FastPaths {
 public:
  [[nodiscard]] constexpr bool has(FastPath path) const { return (off_ >> place(path) & 1) == 0; }
  [[nodiscard]] constexpr FastPaths without(FastPath path) const {
    return FastPaths(off_ | std::uint64_t{1} << place(path));
  }
  static constexpr FastPaths none() { return FastPaths(~std::uint64_t{0}); }
  friend constexpr bool operator==(FastPaths, FastPaths) = default;

  constexpr FastPaths() = default;

 private:
  constexpr explicit FastPaths(std::uint64_t off) : off_(off) {}
  static constexpr int place(FastPath path) { return static_cast<int>(path); }

  std::uint64_t off_ = 0;
};

}  // namespace cpd
