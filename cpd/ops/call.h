// SPDX-License-Identifier: Apache-2.0
//
// Parts that operations on every kind of device share: the tensors, the key and the queue of a
// call, and the errors that depend on values.
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

/// A tensor's memory for a call: x with its dimensions merged (MergeDimensions), at least one.
[[nodiscard]] Strided Merge(const TensorView& x);
/// Merges an optional tensor; without data if x is null.
[[nodiscard]] Strided Merge(const TensorView* x);

/// Returns the addresses of the key's seed and stream in device memory. Null if the mode does not
/// use them, and on the CPU, whose plans have their values.
[[nodiscard]] DeviceKey KeyOf(const RoundingOptions& options, const RandomKey& key);

/// If this thread explains, records a kernel on x's device and returns true. Returns false on the
/// CPU, whose backend records its own kernels.
[[nodiscard]] bool Notes(const TensorView& x, const char* kernel);

/// The queue of x's device and stream. Throws Error for a fault of an earlier call on the device.
[[nodiscard]] Queue QueueOf(const TensorView& x);

/// Calls run(first), which queues a call that lowers *first to the least index of a faulty element.
/// fault(index) returns the error. The CPU's error is thrown here, with the element's index.
/// Another device's error, with index -1, is recorded and raised as in faults.h.
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

/// The fault of an encoding that meets a NaN without a code.
[[nodiscard]] Fault LostNan(const Format& format);

/// The caller's random integers of an ordered sum, `draws` for each element of its result, one
/// after the other in memory; none if the tensor is null. Throws Error for a tensor that is not
/// contiguous, unless it is on the CPU.
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
