// SPDX-License-Identifier: Apache-2.0
//
// The choice of random bits. A spec determines how to round, and a call determines which random
// bits are used. Every operation that can round stochastically takes a RandomKey after its results,
// and ignores the key otherwise.
#pragma once

#include <cstdint>

#include "cpd/spec/error.h"

namespace cpd {

/// The key of a call's random bits. The bits are a function of seed, stream and element index
/// (philox.h).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  /// Addresses of the seed and of the stream in the memory of x's device, used in place of `seed`
  /// and `stream`. The kernel reads the two numbers when it runs. So no call waits for them, and a
  /// CUDA graph uses new numbers at each replay. On the CPU, addresses give an Error.
  const std::uint64_t* device_seed = nullptr;
  const std::uint64_t* device_stream = nullptr;
};

/// Throws Error if device_seed or device_stream is set and the device does not read addresses.
inline void Check(const RandomKey& key, bool reads_addresses) {
  if (reads_addresses || (key.device_seed == nullptr && key.device_stream == nullptr)) return;
  throw Error(
      "device_seed and device_stream are for tensors on another device; on the CPU give seed and "
      "stream");
}

}  // namespace cpd
