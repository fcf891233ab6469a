// SPDX-License-Identifier: Apache-2.0
//
// Convolutions as matrix products whose operands are images, read in place: no unfolded, padded or
// dilated copy is made. On the CPU only.
#pragma once

#include <cstdint>

#include "cpd/backend/cpu/image_operand.h"
#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// Computes out[n, o, place] = c[o] + the sum over k = (channel, tap), in row-major order, of w[o,
/// k] times an element of image x[n]. A place is a window position, a tap is an element of the
/// kernel, and the element of x[n] is the one under that tap. The bits, random bits included, equal
/// the bits of Gemm of each group's matrix w by the group's unfolded images.
///
/// x: images x channels x the image's dimensions. w: groups x outputs x channels x the kernel's
/// dimensions. c: groups x outputs; null: +0. out: images x groups * outputs x places. Each is
/// fp32, bf16 or fp16, of any strides. The type of out holds accumulator.format, and out overlaps
/// no other tensor.
///
/// Products by zeros between a dilated image's elements (spread) are skipped if this changes no bit
/// of a sum.
CPD_API void Convolve(const TensorView& x, const TensorView& w, const TensorView* c,
                      const Windows& windows, const Accumulator& accumulator, const TensorView& out,
                      const RandomKey& key = {});

/// Computes out[o, channel, tap] = the sum over k = (image, place), in row-major order, of g[n, o,
/// place] times an element of image x[n]. A place is a window position, a tap is an element of the
/// kernel, and the element of x[n] is the one under that tap. The result is the gradient of
/// Convolve's w. Its sums have the same bits as the sums of Gemm.
///
/// g: images x outputs x places. x: as in Convolve. out: outputs x channels of a group x the
/// kernel's dimensions, contiguous.
CPD_API void Correlate(const TensorView& g, const TensorView& x, std::int64_t groups,
                       const Windows& windows, const Accumulator& accumulator,
                       const TensorView& out, const RandomKey& key = {});

}  // namespace cpd
