// SPDX-License-Identifier: Apache-2.0
//
// Which random bits a call draws. A spec says how to round, a call says which bits: every operation
// that can round stochastically takes a RandomKey after its results, and ignores it otherwise.
#pragma once

#include <cstdint>

#include "cpd/spec/error.h"

namespace cpd {

/// The random bits of a call: a function of seed, stream and element index (philox.h).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  /// Addresses of seed and stream in the memory of x's device, in place of the numbers above. The
  /// kernel reads them when it runs: nothing waits for them, and a CUDA graph takes new ones at
  /// each replay. On the CPU an Error.
  const std::uint64_t* device_seed = nullptr;
  const std::uint64_t* device_stream = nullptr;
};

/// Throws Error where device_seed or device_stream is given, and the device does not read them.
inline void Check(const RandomKey& key, bool reads_addresses) {
  if (reads_addresses || (key.device_seed == nullptr && key.device_stream == nullptr)) return;
  throw Error(
      "device_seed and device_stream are for tensors on another device; on the CPU give seed and "
      "stream");
}

}  // namespace cpd
