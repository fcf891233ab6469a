// SPDX-License-Identifier: Apache-2.0
//
// Fast paths: kernels that compute some calls of an operation instead of the general kernels, with
// the same bits. Each fast path is one file of fast/ and one row of cpd/numeric/fast/paths.def. To
// remove a fast path, delete both; no other file names a path.
#pragma once

#include <optional>

#include "cpd/backend/backend.h"

namespace cpd::cuda {

/// A fast path of the operation kOperation. Every fast path is one object that lives as long as the
/// library. Start() tries the objects in the order of paths.def.
template <auto kOperation>
class FastKernel;
template <class Call, int (*kOperation)(const Launch&, const Call&)>
class FastKernel<kOperation> {
 public:
  /// applies(call) must return whether the fast path supports the call. start(launch, call) must
  /// queue the fast path's kernels and return a CUDA status, as kOperation does.
  FastKernel(FastPath path, bool (*applies)(const Call&), int (*start)(const Launch&, const Call&))
      : path_(path), applies_(applies), start_(start) {
    const FastKernel** place = &first_;
    while (*place != nullptr && (*place)->path_ < path) place = &(*place)->next_;
    next_ = *place;
    *place = this;
  }
  FastKernel(const FastKernel&) = delete;
  FastKernel& operator=(const FastKernel&) = delete;

  /// Queues the kernels of the first fast path that is enabled and supports the call, and returns
  /// the CUDA status. Returns nullopt if there is no such path.
  static std::optional<int> Start(const Launch& launch, const Call& call) {
    for (const FastKernel* kernel = first_; kernel != nullptr; kernel = kernel->next_) {
      if (launch.fast.has(kernel->path_) && kernel->applies_(call)) {
        return kernel->start_(launch, call);
      }
    }
    return std::nullopt;
  }

 private:
  static inline const FastKernel* first_ = nullptr;

  FastPath path_;
  bool (*applies_)(const Call&);
  int (*start_)(const Launch&, const Call&);
  mutable const FastKernel* next_ = nullptr;
};

}  // namespace cpd::cuda
