// SPDX-License-Identifier: Apache-2.0
//
// The layers of a call, as a rank gives them: checked before anything moves.
#pragma once

#include <span>
#include <string>

#include "cpd/base/tensor.h"

namespace cpd {

/// `on the CPU` or `on GPU 1`.
std::string PlaceOf(const TensorView& x);
bool IsTogether(const TensorView& x, const TensorView& y);

/// The first layer that is not empty. It does not matter where empty ones are.
TensorView FirstLayer(std::span<const TensorView> x);

/// Throws Error unless the layers are contiguous fp32 and lie where `first` does.
void CheckLayers(const char* name, std::span<const TensorView> layers, const TensorView& first);

/// Throws Error where layers share memory, but out[l] may be x[l].
void CheckOverlap(std::span<const TensorView> x, std::span<const TensorView> out);

}  // namespace cpd
