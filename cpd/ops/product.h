// SPDX-License-Identifier: Apache-2.0
//
// Helpers that products of matrices and of images share.
#pragma once

#include <cstdint>

#include "cpd/backend/calls.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// If this thread records what calls would run and computes nothing (cpd.explain), begins the
/// record of a matrix product. Each of its sums has `depth` products. `given`: whether the caller
/// gives the random integers.
void NotePathOfProduct(const char* function, const Accumulator& accumulator, std::int64_t depth,
                       bool given, const TensorView& out);

/// Queues a product on out's device.
void QueueProduct(const GemmCall& call, const TensorView& out);

}  // namespace cpd
