// SPDX-License-Identifier: Apache-2.0
//
// Operations on tensors of a device other than the CPU. ops/ calls these functions with checked
// arguments; x.stream is the stream on which work is queued. They throw MachineError where the
// backend is missing or reports an error.
#pragma once

#include <cstdint>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd::cuda {

/// The path of a product, and the kernel that computes it. A kernel `multiply_halves` is replaced
/// by `multiply_wide` where the device's processors would be left idle.
struct PathOnGpu {
  GemmPath path;
  const char* kernel;
};
PathOnGpu PathOfProduct(const AccumulatorPlan& plan, bool given);

/// The addresses of the key's seed and stream on the GPU; null for a mode that does not use them.
DeviceKey KeyOf(const RoundingOptions& options, const RandomKey& key);

/// Where a call's work is queued, after the faults of earlier calls.
Queue QueueOf(const TensorView& x);

/// x with its dimensions merged (MergeDimensions), at least one.
Strided Merge(const TensorView& x);

/// The caller's random integers; no data where there are none. A fault where one is not below
/// 2^random_bits, which the CPU's callers have checked.
Strided IntegersOf(const TensorView* random, int random_bits, const Queue& queue);

/// Where an encoding notes a NaN that has no code.
class LostNan {
 public:
  LostNan(const Format& format, const Queue& queue);
  /// Null where the format has a code for NaN.
  [[nodiscard]] unsigned long long* place() { return place_; }
  /// After the encoding was queued: throws Error on the CPU, which has found the first NaN, and
  /// elsewhere where calls are checked at once.
  void Raise() const;

 private:
  const Format& format_;
  const Queue& queue_;
  unsigned long long found_ = ~0ULL;
  unsigned long long* place_ = nullptr;
};

/// cpd::Cast of a CUDA tensor. A random integer that is not below 2^N is a fault (faults.h).
void Cast(const TensorView& x, const RoundPlan& plan, const TensorView& out,
          const TensorView* random, const DeviceKey& key);
/// A NaN that has no code is a fault.
void Encode(const TensorView& x, const Format& format, const RoundPlan& plan,
            const TensorView& packed, const TensorView* random, const DeviceKey& key);
void Decode(const TensorView& packed, const RoundPlan& plan, const TensorView& out);

/// The least row-major index of an element that is not a value of the format, or -1 (FirstOutside
/// in ops/operands.h). Waits for the stream, except for fp32, which has all values.
std::int64_t FirstOutside(const TensorView& x, const Format& format);

/// A fault unless all of x are values of the format.
void CheckInside(const TensorView& x, const Format& format, const char* name);

/// A fault unless all of x, fp32, are values of the format and none is negative.
void CheckScales(const TensorView& x, const Format& format, const char* name);

/// cpd::Gemm of CUDA tensors: all checked, a, b and c not yet broadcast, out not empty. A matrix
/// unit's operand that is no value of its formats is a fault. random: null, or `draws` integers for
/// each element, checked as in Cast.
void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
          const TensorView& out, const TensorView* c, const RandomKey& key,
          const TensorView* random, std::int64_t draws);

/// The same of a product and a plan, whose operands are checked.
void Gemm(const MatrixProduct& product, const AccumulatorPlan& plan, const DeviceKey& key,
          const TensorView& out);

/// cpd::GemmScaled of CUDA tensors, checked and broadcast; out is not empty.
void GemmScaled(const MatrixProduct& product, const ProductScales& scales,
                const Accumulator& accumulator, const TensorView& out, const RandomKey& key,
                const TensorView* random, std::int64_t draws);

/// One operation per element (ops/arithmetic.h), checked, out not empty; y is null for sqrt, z
/// except for fma; no fp64 operand for div and sqrt. Random integers are checked as in Cast.
void Operate(Operation op, const TensorView& x, const TensorView* y, const TensorView* z,
             const RoundPlan& plan, const TensorView& out, const TensorView* random,
             const DeviceKey& key);
/// cpd::Sum of `terms` CUDA tensors as large as out, checked, not empty: `first` and the next ones,
/// each `step` elements after the one before.
void Sum(const TensorView& first, std::int64_t terms, std::int64_t step,
         const Accumulator& accumulator, const TensorView& out, const RandomKey& key,
         const TensorView* random, std::int64_t draws);

/// Sum in integers of a fixed width.
void SumFixed(const TensorView& first, std::int64_t terms, std::int64_t step, const FixedPlan& plan,
              const TensorView& out);

/// cpd::Transform of CUDA tensors, checked, not empty.
void Transform(const TensorView& x, const HadamardPlan& plan, int axis, const TensorView& out);

/// out = a * b + c by cuBLAS in binary32 (no TF32). All fp32, checked, broadcast as in Gemm; out is
/// not empty. Throws MachineError where cuBLAS is missing.
void GemmByBlas(const TensorView& a, const TensorView& b, const TensorView& out,
                const TensorView* c);

}  // namespace cpd::cuda
