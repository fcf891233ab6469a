// SPDX-License-Identifier: Apache-2.0
//
// Functions that the operations of codecs share: multiply values by a power of two, count NaN,
// infinities and values that become zero, and round values to the values that their message decodes
// to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/backend/message_calls.h"

namespace cpd::cpu {

/// Returns x * 2^shift, in `scratch`; returns x itself if shift is 0.
const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch);

/// Compares n values x with y, to which they were rounded. Adds to `counts` the number of NaN and
/// infinite x, of nonzero x that became zero, and of zero y (CountLosses). Several threads may add
/// to the same `counts` at once.
void AddLosses(std::int64_t n, const float* x, const float* y, SegmentCounts& counts);

/// Records that a message does not encode value number `index` correctly: lowers *damaged to
/// `index` if `index` is less than *damaged. Does nothing if `damaged` is null.
inline void Note(unsigned long long* damaged, std::int64_t index) {
  if (damaged != nullptr) *damaged = std::min(*damaged, static_cast<unsigned long long>(index));
}

/// Rounds the values of `call`, a codec's call, to the values that their messages decode to. For
/// each block of n values, from value i of `call` on, calls encode(i, n, message) and decode(i, n,
/// message, y). A message has at most most_bytes bytes.
template <class Call, class Encode, class Decode>
void RoundByBlocks(const Call& call, std::int64_t most_bytes, Encode encode, Decode decode) {
  thread_local std::vector<std::uint8_t> message;
  thread_local std::vector<float> values;
  message.resize(std::max(message.size(), static_cast<std::size_t>(most_bytes)));
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    const std::int64_t n = std::min(call.block, call.n - i);
    const bool is_counted = call.counts != nullptr;
    if (is_counted) values.assign(call.x + i, call.x + i + n);
    encode(i, n, message.data());
    decode(i, n, message.data(), call.y + i);
    if (is_counted) AddLosses(n, values.data(), call.y + i, *call.counts);
  }
}

}  // namespace cpd::cpu
