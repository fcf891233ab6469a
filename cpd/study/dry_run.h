// SPDX-License-Identifier: Apache-2.0
//
// Runs an all-reduce without values. Each rank runs the exchange of comm/engine over a channel that
// only counts bytes. Ranks run one at a time, so a run with many ranks needs little memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpd/comm/reduction.h"
#include "cpd/comm/spec.h"

namespace cpd {

/// A transfer: the messages that a rank starts at the same time.
struct Moves {
  struct Message {
    int peer = 0;
    std::int64_t bytes = 0;  ///< of packed values; a message of 0 bytes is not sent
  };
  std::vector<Message> out, in;
  bool is_most = false;  ///< sizes depend on the values: these are upper bounds
};

class CPD_API DryRun {
 public:
  /// Prepares an all-reduce without values. `sizes` are the layers' numbers of values; `layers` has
  /// their stream numbers and row lengths. `in_fp32`: sends all values in binary32, as if sums
  /// could give a NaN that the format has no code for. Throws Error for invalid arguments.
  DryRun(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
         const TensorOptions& layers = {}, bool in_fp32 = false);

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  /// Returns the number of slices into which the exchange cuts the layers.
  [[nodiscard]] int slices() const;

  /// Runs the all-reduce without values, and calls moved(moves) for each transfer of rank `rank`,
  /// in order. The number of calls is the same for all ranks: transfers without messages count too.
  /// Chunks of `chunk` values (CommOptions) run one after the other. Returns the number of steps of
  /// one chunk (Traffic::steps), or 0 if there are no values.
  std::int64_t Run(int rank, std::int64_t chunk,
                   const std::function<void(const Moves&)>& moved) const;

 private:
  std::vector<std::int64_t> sizes_;
  Reduction reduction_;
  bool in_fp32_;
};

}  // namespace cpd
