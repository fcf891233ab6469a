// SPDX-License-Identifier: Apache-2.0
//
// Runs an all-reduce without values: each rank's exchange as in comm/engine, over a channel that
// only counts; one rank at a time, so that there may be many.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpd/comm/reduction.h"
#include "cpd/comm/spec.h"

namespace cpd {

/// A transfer: the messages that a rank starts at once.
struct Moves {
  struct Message {
    int peer = 0;
    std::int64_t bytes = 0;  ///< of packed values; a message of 0 bytes is not sent
  };
  std::vector<Message> out, in;
  bool is_most = false;  ///< sizes vary with the values: these are the most
};

class CPD_API DryRun {
 public:
  /// For layers of these sizes, numbers and rows (TensorOptions). `in_fp32`: all values are sent in
  /// binary32, as if a NaN without a code were possible. Throws Error.
  DryRun(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
         const TensorOptions& layers = {}, bool in_fp32 = false);

  [[nodiscard]] const Reduction& reduction() const { return reduction_; }
  /// The number of slices into which the exchange cuts the layers.
  [[nodiscard]] int slices() const;

  /// Calls moved(moves) for each transfer of a rank, in order: equally often for all ranks, also
  /// for transfers without messages. Chunks of `chunk` values (CommOptions) run one after the
  /// other. Returns the steps of one chunk (Traffic), 0 where there are no values.
  std::int64_t Run(int rank, std::int64_t chunk,
                   const std::function<void(const Moves&)>& moved) const;

 private:
  std::vector<std::int64_t> sizes_;
  Reduction reduction_;
  bool in_fp32_;
};

}  // namespace cpd
