// SPDX-License-Identifier: Apache-2.0
//
// Checks the tensors that a rank passes to a collective, before anything is sent.
#pragma once

#include <span>

#include "cpd/base/tensor.h"

namespace cpd {

/// Returns the first layer that is not empty, which determines the device: empty layers may be on
/// any device.
TensorView FirstLayer(std::span<const TensorView> x);

/// Throws Error unless the layers are contiguous fp32 and on the device of `first`.
void CheckLayers(const char* name, std::span<const TensorView> layers, const TensorView& first);

/// Throws Error if two layers share memory. Only out[l] and x[l] may be the same memory.
void CheckOverlap(std::span<const TensorView> x, std::span<const TensorView> out);

}  // namespace cpd
