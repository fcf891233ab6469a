// SPDX-License-Identifier: Apache-2.0
//
// Counts the values that a rounding on a device loses to overflow or underflow.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <span>

#include "cpd/backend/queue.h"

namespace cpd::testing {

class Losses {
 public:
  explicit Losses(const SharedQueue& queue)
      : queue_(queue), counts_(QueuedValues<SegmentCounts>(queue, 1)) {
    queue_->Clear(counts_.get(), sizeof(SegmentCounts));
  }
  [[nodiscard]] SegmentCounts* get() const { return counts_.get(); }
  /// Expects the counts for values x that were rounded to y: the Inf and NaN among x, the zeros
  /// among y, and the nonzero values that became zero.
  void Expect(std::span<const float> x, std::span<const float> y) const {
    SegmentCounts counted;
    queue_->Copy(&counted, counts_.get(), sizeof(counted));
    SegmentCounts lost;
    for (std::size_t i = 0; i < x.size(); ++i) {
      lost.non_finite += std::isfinite(x[i]) ? 0 : 1;
      lost.zeros += y[i] == 0 ? 1 : 0;
      lost.underflowed += y[i] == 0 && x[i] != 0 ? 1 : 0;
    }
    EXPECT_EQ(counted.non_finite, lost.non_finite);
    EXPECT_EQ(counted.zeros, lost.zeros);
    EXPECT_EQ(counted.underflowed, lost.underflowed);
  }

 private:
  SharedQueue queue_;
  std::shared_ptr<SegmentCounts> counts_;
};

}  // namespace cpd::testing
