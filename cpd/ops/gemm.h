// SPDX-License-Identifier: Apache-2.0
//
// Matrix products with any accumulator, with scales of operands, or by a BLAS.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/scales_at.h"

namespace cpd {

/// Computes out[…, i, j] = c[…, i, j] + the sum over k, ascending, of a[…, i, k] * b[…, k, j].
///
/// a: … × M × K, b: … × K × N, each fp32, bf16 or fp16, of any strides. Operands are any values of
/// their types, and are not rounded. out: … × M × N, of a type (fp32, bf16 or fp16) that holds
/// accumulator.format; it overlaps no input. The dimensions before the last two broadcast to out's,
/// and so do all dimensions of `c` (null: +0). M, N and K may be 0. K = 0 gives c rounded as below,
/// and scheme block_fma rounds it into `format`, too.
///
/// First c is rounded into accumulator.format (block_fma: into unit.sum or, with promotion, into
/// `format`; fixed: to units). Then terms are added. p(k) is round_product(a * b), or the exact
/// product if products are exact:
///   sequential  s = round(s + p(k)). With exact products, s + a * b is rounded only once.
///   kahan       The four rounded operations of a Kahan step. The compensation is +0 if s is
///               infinite or NaN.
///   chunked     t = +0 at the start of each chunk (k div chunk); t = round_inner(t + p(k)); after
///               the chunk's last product s = round(s + t).
///   pairwise    A tree over p(0) … p(K - 1) with each sum rounded; exact products are not rounded
///               before the tree. Then, if K > 0, s = round(s + tree).
///   block_fma   The rule of BlockFma. Blocks along k are chained through the sum. The scales of a
///               unit that takes scales are 1. An operand that is not a value of the unit's formats
///               is an error. For a TF32 unit that takes any binary32 number, first cast to tf32
///               with toward_zero.
///   fixed       c and each exact product are rounded to integers of units 2^-fraction and added.
///               Each addition wraps or saturates. A term outside the integer's range is added with
///               its full value. The sum is rounded into `format`. It is NaN if c or an operand is
///               NaN or infinite. A zero is +0.
///
/// Stochastic rounding uses the random integers of `key` for out's row-major element number (below
/// 2^40). Draw 0 rounds c. All other roundings use successive draws, which start at the next block
/// (draw 4 s, s as in philox.h). The draws follow program order: the product, if it is rounded,
/// then its sum or sums. `random` (u32; stochastic rounding only) gives a caller's integers
/// instead. `random` has out's shape and a last dimension of DrawsOfGemm(accumulator, K). Integer
/// [i, 0], below 2^N, rounds c (unused without c). The integers from [i, 1] on round the other
/// results of element i in program order. With `random` no fast path is used.
///
/// The result does not depend on threads, tiles or backend. Throws Error, before anything is
/// written, for shapes, types and devices that do not fit.
CPD_API void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                  const TensorView& out, const TensorView* c = nullptr, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// The position of a part of a matrix product in the whole product. `element` is the row-major
/// index of the part's first element in the whole result; the others follow it. `product` is the
/// part's first k. The part's sums continue from c.
struct GemmPart {
  std::int64_t element = 0, product = 0;
};
/// Computes a part of a larger product. The part gets the same bits as in the larger product, also
/// with stochastic rounding. If part.product, the part's first k, is not 0, the scheme must be
/// sequential, or chunked with part.product a multiple of the chunk. Throws Error otherwise.
CPD_API void Gemm(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                  const TensorView& out, const TensorView* c, const GemmPart& part,
                  const RandomKey& key = {});

/// Returns the number of integers that `random` holds for each element: 1 for c, and one for each
/// other rounding in a sum of `depth` products. Returns 0 unless the accumulator's rounding is
/// stochastic.
CPD_API std::int64_t DrawsOfGemm(const Accumulator& accumulator, std::int64_t depth);

/// The scales by which the elements of one operand, a or b, are multiplied. A line is a row of a or
/// a column of b.
struct OperandScales {
  /// The scales, in fp32. Their shape is … × ⌈M / lines⌉ × ⌈K / block⌉ for operand a, and
  /// … × ⌈K / block⌉ × ⌈N / lines⌉ for operand b. The dimensions before the last two broadcast to
  /// out's. Null: all scales are 1.
  const TensorView* scales = nullptr;
  std::int64_t block = 0;  ///< values of k that share a scale; 0: all (one scale)
  std::int64_t lines = 1;  ///< lines that share a scale; 0: all
  /// A second scale, in fp32, for each row of a or column of b, or for the whole operand. It
  /// broadcasts to … × M × 1 for a and to … × 1 × N for b. Null: 1.
  const TensorView* factor = nullptr;
};

/// Computes the product of scaled operands. a and b, as in Gemm, hold the elements before they are
/// multiplied by their scales; out is fp32. fl is one rounding to binary32, nearest-even, and never
/// contracted into an fma; s(x, y) = fl(x * y). `block` is the finer of the two operands' blocks
/// along k; the other block is a multiple of it.
///   block     For each block of k, ascending (the last may be short): p = the accumulator's sum
///             over the block alone, from +0; total = fl(total + fl(s(a's scale, b's scale) * p)).
///             total starts from +0.
///   epilogue  p = the accumulator's sum over all of k, from +0;
///             total = fl(s(a's scale, b's scale) * p). The scales must be constant along k.
///   then      y = fl(s(a's factor, b's factor) * total), and with c: y = fl(y + c).
/// Chunks of the accumulator, and the blocks of a matrix unit, are counted from a block's first k.
///
/// A matrix unit that takes scales (BlockFma::scale) multiplies by the scales itself, with
/// scales_at block. The scales' blocks must be multiples of BlockFma::scale_block. The scales must
/// be values of the format BlockFma::scale; their signs are ignored. total is then the matrix
/// unit's sum over all of k. total starts from c; with factors, total starts from +0, and c is
/// added in the step `then`.
///
/// Random bits: as in Gemm. Draw 0 rounds the initial value of each of the accumulator's sums. The
/// other roundings of a block use the draws that follow the previous block's draws. `random` has
/// DrawsOfGemmScaled integers for each element: 1, then the integers of each block. Only the CPU
/// accepts `random`.
///
/// The result does not depend on threads, tiles or backend. Throws Error, before anything is
/// written, for shapes, types and devices that do not fit.
CPD_API void GemmScaled(const TensorView& a, const OperandScales& a_scales, const TensorView& b,
                        const OperandScales& b_scales, const Accumulator& accumulator, ScalesAt at,
                        const TensorView& out, const TensorView* c = nullptr,
                        const RandomKey& key = {}, const TensorView* random = nullptr);

/// Returns the number of integers that `random` of GemmScaled holds for each element. `block`: the
/// finer of the two operands' blocks for ScalesAt::block; 0 for ScalesAt::epilogue.
CPD_API std::int64_t DrawsOfGemmScaled(const Accumulator& accumulator, std::int64_t depth,
                                       std::int64_t block);

/// Computes Gemm by the device's BLAS: cuBLAS for CUDA, the system's OpenBLAS for the CPU. The
/// library chooses the order of summation. All tensors are fp32. The accumulator must be (8,23),
/// sequential and nearest-even. c starts the sums as in Gemm. out overlaps no input. Throws
/// MachineError if the library is not installed.
CPD_API void GemmByBlas(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                        const TensorView& out, const TensorView* c = nullptr);

/// Returns the BLAS that GemmByBlas calls on the CPU, e.g. `OpenBLAS 0.3.21`; empty if there is
/// none.
CPD_API std::string_view CpuBlas();

}  // namespace cpd
