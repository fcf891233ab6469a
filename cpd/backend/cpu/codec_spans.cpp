// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/codec_spans.h"

#include "cpd/backend/cpu/spans.h"

namespace cpd::cpu {

const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch) {
  if (shift == 0) return x;
  scratch.resize(static_cast<std::size_t>(n));
  UnscaleSpan(shift, 1, n, x, scratch.data());
  return scratch.data();
}

void AddLosses(std::int64_t n, const float* x, const float* y, SegmentCounts& counts) {
  SegmentCounts lost;
  CountLosses(n, x, y, lost);
  AddCounts(lost, counts);
}

}  // namespace cpd::cpu
