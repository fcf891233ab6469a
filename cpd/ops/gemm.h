// SPDX-License-Identifier: Apache-2.0
//
// Matrix products with any accumulator, with scales of operands, and by a BLAS.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/scales_at.h"

namespace cpd {

/// out[…, i, j] = the sum over k, ascending, of a[…, i, k] * b[…, k, j], starting from c[…, i, j].
///
/// a: … × M × K, b: … × K × N (each fp32, bf16 or fp16; any strides), out: … × M × N, of a type
/// that holds accumulator.format (fp32, bf16, fp16), which overlaps no input. The dimensions before
/// the last two broadcast to out's, and so does all of `c` (fewer dimensions or ones; null: +0). M,
/// N, K may be 0; K = 0 gives c rounded as below, block_fma's sum into `format` too. Operands are
/// any values of their type, and are not rounded.
///
/// c is rounded into accumulator.format first (block_fma: into unit.sum, or, with promotion, into
/// `format`; fixed: to units). Then, with p(k) = round_product(a * b), or the exact product:
///   sequential  s = round(s + p(k)), for exact products the exact s + a * b rounded once;
///   kahan       the four rounded operations; where s is infinite or NaN the compensation is +0;
///   chunked     t = +0 at the start of each chunk (k div chunk); t = round_inner(t + p(k)); after
///               the chunk's last product s = round(s + t);
///   pairwise    the tree over p(0) … p(K - 1), each sum rounded, exact products unrounded; then
///               s = round(s + tree) (K > 0);
///   block_fma   BlockFma's rule, blocks along k chained through the sum; scales, where the unit
///               takes some, are 1;
///   fixed       c and each exact product are rounded to integers of units 2^-fraction and added,
///               each addition wraps or saturates, and the sum is rounded into `format`; NaN where
///               c or an operand is NaN or infinite. A zero is +0.
///
/// Random bits of stochastic rounding are those of `key`, index = out's row-major
/// element number (below 2^40); draw 0 rounds c; the other roundings take successive draws from the
/// next block on (draw 4 s, s as in philox.h), in program order: product (where it is rounded),
/// then its sum(s).
/// `random` (u32; stochastic only) are a caller's integers in their place, of out's shape and,
/// last, DrawsOfGemm(accumulator, K); integer [i, 0] is the R < 2^N that rounds c (unused where
/// there is no c), those from [i, 1] on are element i's other roundings' in program order; no short
/// route is taken.
///
/// The result does not depend on threads, tiles or backend. Throws Error, before anything is
/// written, for shapes, types and devices that do not fit.
CPD_API void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                  const TensorView& out, const TensorView* c = nullptr, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// A part of a larger product: out holds its elements from number `element` on, in row-major order,
/// and k its products from number `product` on. Their sum continues from c.
struct GemmPart {
  std::int64_t element = 0, product = 0;
};
/// Gemm of a part: the bits, random ones too, that it has in the whole. `product` is 0, or the sum
/// is sequential, or chunked and `product` a multiple of its chunk.
CPD_API void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                  const TensorView& out, const TensorView* c, const GemmPart& part,
                  const RandomKey& key = {});

/// The number of integers that `random` holds for each element: 1 for c, and one for each other
/// rounding of a sum of `depth` products. 0 where the accumulator's rounding is not stochastic.
CPD_API std::int64_t DrawsOfGemm(const Accumulator& accumulator, std::int64_t depth);

/// The scales by which elements of one operand are multiplied. (lines: rows of a, columns of b.)
struct OperandScales {
  /// fp32; a's: … × ⌈M / lines⌉ × ⌈K / block⌉, b's: … × ⌈K / block⌉ × ⌈N / lines⌉. The dimensions
  /// before the last two broadcast to out's. Null: all are 1.
  const TensorView* scales = nullptr;
  std::int64_t block = 0;  ///< values of k that share a scale; 0: all (that dimension is 1)
  std::int64_t lines = 1;  ///< lines that share a scale; 0: all
  /// fp32, a second scale of whole lines or of the operand: broadcasts to … × M × 1 (b: … × 1 × N).
  /// Null: 1.
  const TensorView* factor = nullptr;
};

/// out = the product of scaled operands; a and b, as in Gemm, hold the elements before they are
/// multiplied by their scales, out is fp32. With s(x, y) = fl(x * y) and fl one rounding to
/// binary32, nearest-even, never contracted into an fma:
///   block     for each block of k, ascending (the finer of the two operands' blocks, of which the
///             other is a multiple; the last may be short): p = the accumulator's sum over the
///             block alone, from +0; total = fl(total + fl(s(a's scale, b's) * p)); total starts
///             from +0;
///   epilogue  total = fl(s(a's scale, b's) * p), p the accumulator's sum over all of k, from +0;
///             the scales must be constant along k;
///   then      y = fl(s(a's factor, b's) * total), and, where there is a c, y = fl(y + c).
/// Chunks, and a unit's blocks, are counted from each block's first k.
///
/// A matrix unit that takes scales (BlockFma::scale) multiplies by them itself, in scales_at block:
/// their blocks are multiples of its scale_block, their values are of its format, and signs are
/// ignored. Then total is the unit's sum over all of k, which starts from c; where there are
/// factors it starts from +0, and c is added as above.
///
/// Random bits: as in Gemm; draw 0 rounds the initial value of each of the accumulator's sums, and
/// each block's other roundings take the draws that follow those of the block before. `random`: 1
/// and those of every block, DrawsOfGemmScaled in all; on the CPU only.
///
/// The result does not depend on threads, tiles or backend. Throws Error, before anything is
/// written, for shapes, types and devices that do not fit.
CPD_API void GemmScaled(const TensorView& a, const OperandScales& a_scales, const TensorView& b,
                        const OperandScales& b_scales, const Accumulator& accumulator, ScalesAt at,
                        const TensorView& out, const TensorView* c = nullptr,
                        const RandomKey& key = {}, const TensorView* random = nullptr);

/// DrawsOfGemm for GemmScaled; block: the finer one of scales_at block, 0 for epilogue.
CPD_API std::int64_t DrawsOfGemmScaled(const Accumulator& accumulator, std::int64_t depth,
                                       std::int64_t block);

/// Gemm by the device's BLAS: cuBLAS for CUDA, the system's OpenBLAS for the CPU. All tensors are
/// fp32; accumulator must be (8,23), sequential, nearest-even, and the order of summation is
/// the library's. c starts the sums as in Gemm; out overlaps no input. Throws MachineError where
/// the library is not installed.
CPD_API void GemmByBlas(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                        const TensorView& out, const TensorView* c = nullptr);

/// Returns the BLAS that GemmByBlas calls on the CPU, e.g. `OpenBLAS 0.3.21`; empty if there is
/// none.
CPD_API std::string_view CpuBlas();

}  // namespace cpd
