// SPDX-License-Identifier: Apache-2.0
//
// Convolutions as matrix products whose operands are images, read in place: nothing is unfolded,
// padded or dilated in memory. On the CPU only.
#pragma once

#include <cstdint>

#include "cpd/backend/cpu/image_operand.h"
#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// out[n, o, place] = the sum over k = (channel, tap), row-major, of w[o, k] times the element of
/// image x[n] at the tap of the window at that place, starting from c[o]. Bit for bit, random bits
/// included, it is Gemm of each group's matrix w by its unfolded images.
///
/// x: images x channels x an image's dimensions; w: groups x outputs x channels x the kernel's; c
/// (null: +0): groups x outputs; out: images x groups * outputs x places. Each is fp32, bf16 or
/// fp16, of any strides; out is of a type that holds accumulator.format and overlaps none of the
/// others.
///
/// Zeros between a dilated image's elements (spread) are left out of a sum where this changes no
/// bit of it.
CPD_API void Convolve(const TensorView& x, const TensorView& w, const TensorView* c,
                      const Windows& windows, const Accumulator& accumulator, const TensorView& out,
                      const RandomKey& key = {});

/// out[o, channel, tap] = the sum over k = (image, place), row-major, of g[n, o, place] times the
/// element of image x[n] under the tap: the gradient of Convolve's w, bit for bit as a Gemm.
///
/// g: images x outputs x places; x as in Convolve; out: outputs x channels of a group x the
/// kernel's dimensions, contiguous.
CPD_API void Correlate(const TensorView& g, const TensorView& x, std::int64_t groups,
                       const Windows& windows, const Accumulator& accumulator,
                       const TensorView& out, const RandomKey& key = {});

}  // namespace cpd
