// SPDX-License-Identifier: Apache-2.0
//
// The names of the fast paths (paths.def), and sets of fast paths. For values within its bounds, a
// fast path gives the bits of the general path with fewer operations.
#pragma once

#include <cstdint>

namespace cpd {

/// A fast path, by its name in the list paths.def. `none` stands for the general path.
enum class FastPath : std::uint8_t {
  none,
#define CPD_FAST_SUM(name, Path) name,
#define CPD_FAST_LANES(name, Path) name,
#define CPD_FAST_CUDA(name) name,
#include "cpd/numeric/fast/paths.def"
};

/// The names of the fast paths. Index a name by its FastPath enumerator.
inline constexpr const char* kFastPathNames[] = {
    "general",
#define CPD_FAST_SUM(name, Path) #name,
#define CPD_FAST_LANES(name, Path) #name,
#define CPD_FAST_CUDA(name) #name,
#include "cpd/numeric/fast/paths.def"
};
inline constexpr int kFastPaths = sizeof(kFastPathNames) / sizeof(kFastPathNames[0]);

/// A set of fast paths. The default set contains all fast paths.
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
