// SPDX-License-Identifier: Apache-2.0
//
// Fast paths: kernels that compute some calls of an operation in place of its general ones, with
// their bits. Each is a file of fast/ and its row in cpd/numeric/fast/paths.def. Nothing else names
// a path, so that it goes with these two.
#pragma once

#include <optional>

#include "cpd/backend/backend.h"

namespace cpd::cuda {

/// A fast path of kOperation. Each is one object, which lives as long as the library; they are
/// asked in the order of paths.def.
template <auto kOperation>
class FastKernel;
template <class Call, int (*kOperation)(const Launch&, const Call&)>
class FastKernel<kOperation> {
 public:
  /// applies(call): whether the kernels compute the call; start(launch, call) queues them, as the
  /// operation does, and returns a status.
  FastKernel(FastPath path, bool (*applies)(const Call&), int (*start)(const Launch&, const Call&))
      : path_(path), applies_(applies), start_(start) {
    const FastKernel** place = &first_;
    while (*place != nullptr && (*place)->path_ < path) place = &(*place)->next_;
    next_ = *place;
    *place = this;
  }
  FastKernel(const FastKernel&) = delete;
  FastKernel& operator=(const FastKernel&) = delete;

  /// Queues the call by the first path that is on and computes it, and returns its status; nothing
  /// where there is none.
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
