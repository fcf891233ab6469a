// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <utility>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"

namespace cpd {

/// Queues a call's work behind that of the layers' streams, and what these get afterwards behind
/// it. Empty layers, which may be on another GPU, have no part in that.
class StreamOrder {
 public:
  StreamOrder(SharedQueue queue, std::span<const TensorView> x, std::span<const TensorView> out)
      : queue_(std::move(queue)) {
    for (const auto& views : {x, out}) {
      for (const TensorView& view : views) {
        if (view.size() > 0) streams_.insert(view.stream);
      }
    }
    for (void* stream : streams_) queue_->Follow(stream);
  }
  ~StreamOrder() {
    for (void* stream : streams_) queue_->Precede(stream);
  }
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

 private:
  SharedQueue queue_;
  std::set<void*> streams_;
};

}  // namespace cpd
