// SPDX-License-Identifier: Apache-2.0
//
// Explaining a call. While a thread explains, its operations check their arguments and choose their
// paths as usual, record what they would run, and compute nothing. An operation records the path
// that its own dispatch has chosen, and parallel_for calls no body.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// The path that one operation would run. Names of paths: cpd/ops/README.md.
struct Explanation {
  std::string function;            ///< the operation: cast, gemm, …
  std::string backend;             ///< an instruction set, "portable", "cuda:0" or a BLAS
  std::string kernel;              ///< the backend's function
  std::string path;                ///< the arithmetic
  std::vector<std::int64_t> tile;  ///< values of each dimension that a task computes at once
  int threads = 1;                 ///< the most that work at the same time; 1 on a GPU
  std::string why;                 ///< why the path is general, or what else decides it
};

namespace detail {
/// The number of threads that explain.
CPD_API extern std::atomic<int> g_explaining;
}  // namespace detail

/// While it exists, this thread explains.
class CPD_API Explaining {
 public:
  /// gpu: the device of tensors that have no memory; -1: the CPU.
  explicit Explaining(int gpu = -1);
  Explaining(const Explaining&) = delete;
  Explaining& operator=(const Explaining&) = delete;
  ~Explaining();

  /// Returns the notes of the operations, in their order.
  [[nodiscard]] const std::vector<Explanation>& steps() const { return steps_; }
  [[nodiscard]] int gpu() const { return gpu_; }
  /// The scope of this thread, or null.
  [[nodiscard]] static Explaining* Current() {
    return detail::g_explaining.load(std::memory_order_relaxed) == 0 ? nullptr : OfThread();
  }

  /// Begins a step.
  void Begin(const char* function, std::string path, std::string why);
  /// Completes it.
  void Run(std::string backend, std::string kernel, std::vector<std::int64_t> tile = {});
  void Take(int threads);
  /// An address for `bytes` of a tensor that has no memory, apart from all others. It is never read
  /// or written.
  [[nodiscard]] void* Place(std::int64_t bytes);

 private:
  [[nodiscard]] static Explaining* OfThread();

  std::vector<Explanation> steps_;
  int gpu_;
  std::uintptr_t next_;
  Explaining* before_;
};

/// Returns whether this thread explains.
inline bool Explains() { return Explaining::Current() != nullptr; }

}  // namespace cpd
