// SPDX-License-Identifier: Apache-2.0
//
// Orders a reduction's work after the work already queued on its layers' streams, and later work on
// these streams after the reduction.
#pragma once

#include <set>
#include <span>
#include <utility>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"

namespace cpd {

/// Makes a call's work wait for work already queued on the layers' streams, and makes those streams
/// wait for the call when it ends. Leaves out empty layers, which may be on another device.
class StreamOrder {
 public:
  StreamOrder(SharedQueue queue, void* stream) : queue_(std::move(queue)), streams_{stream} {
    queue_->Follow(stream);
  }
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
