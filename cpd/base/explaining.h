// SPDX-License-Identifier: Apache-2.0
//
// Explaining a call: recording what the call would run. While a thread explains, operations check
// their arguments and choose their paths as usual, record what they would run, and compute nothing.
// An operation records the path that its own dispatch has chosen. parallel_for calls no body.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// The path that one operation would run. cpd/ops/README.md lists the names of paths.
struct Explanation {
  std::string function;            ///< the operation: cast, gemm, …
  std::string backend;             ///< an instruction set, "portable", "cuda:0" or a BLAS
  std::string kernel;              ///< the backend's function
  std::string path;                ///< the arithmetic
  std::vector<std::int64_t> tile;  ///< values along each dimension that a task computes at once
  int threads = 1;                 ///< maximum number that work at the same time; 1 on a GPU
  std::string why;                 ///< why the path is general, or what it also depends on
};

namespace detail {
/// The number of Explaining objects that exist in the process. If it is 0, no thread records calls.
CPD_API extern std::atomic<int> g_explaining;
}  // namespace detail

/// While an object of this class exists, operations on its thread only record what they would run.
class CPD_API Explaining {
 public:
  /// `gpu`: the index of the GPU of tensors that have no memory; -1: such tensors are on the CPU.
  explicit Explaining(int gpu = -1);
  Explaining(const Explaining&) = delete;
  Explaining& operator=(const Explaining&) = delete;
  ~Explaining();

  /// Returns the records of the operations, in the order of the calls.
  [[nodiscard]] const std::vector<Explanation>& steps() const { return steps_; }
  [[nodiscard]] int gpu() const { return gpu_; }
  /// Returns the innermost Explaining object of this thread, or null.
  [[nodiscard]] static Explaining* Current() {
    return detail::g_explaining.load(std::memory_order_relaxed) == 0 ? nullptr : OfThread();
  }

  /// Begins the record of an operation.
  void Begin(const char* function, std::string path, std::string why);
  /// Adds to the record of the last operation the backend, the kernel, and the extents of the tiles
  /// in which the kernel computes.
  void Run(std::string backend, std::string kernel, std::vector<std::int64_t> tile = {});
  /// Adds the number of threads to the record of the last operation. If the record already has a
  /// larger number, that number remains.
  void Take(int threads);
  /// Returns an address for `bytes` bytes of a tensor without memory. The address overlaps no other
  /// and is never read or written.
  [[nodiscard]] void* Place(std::int64_t bytes);

 private:
  [[nodiscard]] static Explaining* OfThread();

  std::vector<Explanation> steps_;
  int gpu_;
  std::uintptr_t next_;
  Explaining* before_;
};

/// Returns whether operations on this thread only record what they would run.
inline bool Explains() { return Explaining::Current() != nullptr; }

}  // namespace cpd
