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
#include "cpd/numeric/scaled/block_layout.h"
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

/// cpd::Gemm of CUDA tensors: all checked, a, b and c not yet broadcast, out not empty. random:
/// null, or `draws` integers for each element, checked.
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

/// out = a * b + c by cuBLAS in binary32 (no TF32). All fp32, checked, broadcast as in Gemm; out is
/// not empty. Throws MachineError where cuBLAS is missing.
void GemmByBlas(const TensorView& a, const TensorView& b, const TensorView& out,
                const TensorView* c);

}  // namespace cpd::cuda
