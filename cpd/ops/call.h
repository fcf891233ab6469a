// SPDX-License-Identifier: Apache-2.0
//
// Helpers that operations on every device share: the tensors, the key and the queue of a call, and
// errors that depend on values.
#pragma once

#include <cstdint>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/draws/given_draws.h"
#include "cpd/spec/format.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Returns x as an argument for a backend's call: neighboring dimensions are merged where possible
/// (MergeDimensions). The result has at least one dimension.
[[nodiscard]] Strided Merge(const TensorView& x);
/// Returns *x with its dimensions merged, as Merge(const TensorView&) does. If x is null, the
/// result has a null data pointer.
[[nodiscard]] Strided Merge(const TensorView* x);

/// Returns the addresses of the key's seed and stream in device memory. The addresses are null if
/// the rounding mode uses no random bits. They are also null on the CPU, where the plan of a call
/// holds the seed and the stream.
[[nodiscard]] DeviceKey KeyOf(const RoundingOptions& options, const RandomKey& key);

/// If this thread records what calls would run and computes nothing (cpd.explain), and x is not on
/// the CPU, records a kernel on x's device and returns true. Otherwise returns false. The CPU's
/// backend records its own kernels.
[[nodiscard]] bool Notes(const TensorView& x, const char* kernel);

/// Returns the queue of x's device and stream. Throws Error if an earlier call on the device had a
/// fault (an error that depends on values).
[[nodiscard]] Queue QueueOf(const TensorView& x);

/// Calls run(first). run must queue an operation that lowers *first to the lowest index of a faulty
/// element. fault(index) returns the error. On the CPU the error is thrown here, with the element's
/// index. On another device the error is recorded with index -1 and raised later (faults.h).
template <class MakeFault, class Run>
void RunChecked(const Queue& queue, MakeFault fault, Run run) {
  if (queue.notes_faults()) {
    run(queue.NoteOf(fault(std::int64_t{-1})));
    return queue.EndChecked();
  }
  unsigned long long first = kNoFault;
  run(&first);
  if (first != kNoFault) Raise(fault(static_cast<std::int64_t>(first)), first);
}

/// Returns the fault (error text) for a NaN that the format cannot encode.
[[nodiscard]] Fault LostNan(const Format& format);

/// The caller's random integers for an ordered sum: `draws` integers for each element of the
/// result, contiguous in memory. Empty if `random` is null. Throws Error if a tensor on another
/// device than the CPU is not contiguous.
class GivenIntegers {
 public:
  GivenIntegers(const TensorView* random, std::int64_t draws);
  GivenIntegers(const GivenIntegers&) = delete;
  GivenIntegers& operator=(const GivenIntegers&) = delete;
  [[nodiscard]] GivenDraws draws() const { return draws_; }

 private:
  GivenDraws draws_;
  std::vector<std::uint32_t> copy_;
};

}  // namespace cpd
