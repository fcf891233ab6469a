// SPDX-License-Identifier: Apache-2.0
//
// Checks of the layers that a rank calls with, before anything is sent.
#pragma once

#include <span>

#include "cpd/base/tensor.h"

namespace cpd {

/// The first layer that is not empty: empty ones may be on any device.
TensorView FirstLayer(std::span<const TensorView> x);

/// Throws Error unless the layers are contiguous fp32 and on the device of `first`.
void CheckLayers(const char* name, std::span<const TensorView> layers, const TensorView& first);

/// Throws Error where layers share memory; out[l] may be x[l] itself.
void CheckOverlap(std::span<const TensorView> x, std::span<const TensorView> out);

}  // namespace cpd
