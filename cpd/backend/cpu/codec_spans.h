// SPDX-License-Identifier: Apache-2.0
//
// Steps that the operations of codecs share: multiplies a range of values by a power of two, adds
// up the losses of a rounding, and rounds values to the values of their message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/backend/message_calls.h"

namespace cpd::cpu {

/// Returns x * 2^shift: x itself for shift 0, else in `scratch`.
const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch);

/// Adds the losses of n values x that became y.
void AddLosses(std::int64_t n, const float* x, const float* y, SegmentCounts& counts);

/// Lowers *damaged to the index of a value, unless it is null.
inline void Note(unsigned long long* damaged, std::int64_t index) {
  if (damaged != nullptr) *damaged = std::min(*damaged, static_cast<unsigned long long>(index));
}

/// Rounds a call's values to those that the message of each of its blocks decodes to. Calls
/// encode(i, n, message) and decode(i, n, message, y) for the n values of each block, from the
/// call's value i on; a message has at most most_bytes.
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
