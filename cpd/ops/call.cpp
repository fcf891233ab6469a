// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/call.h"

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/base/explaining.h"
#include "cpd/spec/error.h"

namespace cpd {

Strided Merge(const TensorView& x) {
  Strided all;
  all.data = x.data;
  all.dtype = x.dtype;
  all.rank = 0;
  for (int d = 0; d < x.rank; ++d) {
    const std::int64_t extent = x.shape[d];
    if (extent == 1) continue;
    const int last = all.rank - 1;
    const bool even = last >= 0 && all.stride[last] == x.stride[d] * extent;
    const int to = even ? last : all.rank++;
    all.shape[to] = even ? all.shape[to] * extent : extent;
    all.stride[to] = x.stride[d];
  }
  if (all.rank > 0) return all;
  all.rank = 1;
  all.shape[0] = all.stride[0] = 1;
  return all;
}

Strided Merge(const TensorView* x) {
  if (x != nullptr) return Merge(*x);
  Strided none;
  return none;
}

DeviceKey KeyOf(const RoundingOptions& options, const RandomKey& key) {
  if (options.mode != Rounding::stochastic) return {};
  return {key.device_seed, key.device_stream};
}

bool Notes(const TensorView& x, const char* kernel) {
  Explaining* const explaining = Explaining::Current();
  if (explaining == nullptr || x.on_host()) return false;
  explaining->Run(NameOf(x), kernel);
  return true;
}

Queue QueueOf(const TensorView& x) {
  if (!x.on_host()) CheckDevice(x.device, x.device_index);
  return Queue(x);
}

Fault LostNan(const Format& format) {
  return {"element ", " is NaN, and " + ToString(format) + " has no code for NaN"};
}

GivenIntegers::GivenIntegers(const TensorView* random, std::int64_t draws) {
  if (random == nullptr || random->size() == 0) return;
  draws_ = {static_cast<const std::uint32_t*>(random->data), draws};
  if (random->is_contiguous() || Explains()) return;
  if (!random->on_host())
    throw Error("random integers must be contiguous unless they are on the CPU");
  copy_.resize(static_cast<std::size_t>(random->size()));
  Gather(*random, 0, random->size(), copy_.data());
  draws_.random = copy_.data();
}

}  // namespace cpd
