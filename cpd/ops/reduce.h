// SPDX-License-Identifier: Apache-2.0
//
// The pieces of a reduction over ranks: ordered sums taken term by term, and casts that scale by a
// power of two on their way into and out of packed codes. Contiguous binary32 on the CPU; index
// `first` + i is that of element i in its layer, on which random bits depend: below 2^40, and the
// range lies between two multiples of 2^32.
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/given_draws.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// Where one ordered sum per element stands: plane q of element i at planes[q * stride + i],
/// FoldPlanes of them, the caller's. Their content before the first term does not matter. `given`:
/// element 0's random integers and those after it, in place of generated ones.
template <class T>
struct FoldStateOf {
  T* planes = nullptr;
  std::int64_t stride = 0;
  GivenDraws given{};
};
using FoldState = FoldStateOf<float>;
using FoldState64 = FoldStateOf<double>;

/// Planes that a sum of so many terms needs: 1 (sequential), 2 (kahan: sum, compensation; chunked:
/// outer sum, inner sum), pairwise one for each bit of `terms`.
CPD_API int FoldPlanes(const Accumulator& accumulator, std::int64_t terms);

/// Adds term number k (0, 1, …, in this order) to the n sums, as numeric/sums/fold_walk.h says:
/// what each scheme does, and by which draws. `terms` are any binary32 values; each operation is
/// one exact result rounded once. block_fma and fixed: Error. `terms_in`: a format in which the
/// terms are known to lie (kFp32: nothing is known); it only chooses the route, never the result.
CPD_API void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                      std::int64_t first, std::int64_t n, const float* terms, FoldState state);

/// The same as FoldStep for terms k … k + count - 1, number k + j at terms[j]; faster, the more of
/// them there are, and fastest where the planes are aligned to 64 bytes.
CPD_API void FoldSteps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                       std::int64_t count, std::int64_t first, std::int64_t n,
                       const float* const* terms, FoldState state);

/// After the last of `terms` >= 1 terms: leaves the sums in plane 0.
CPD_API void FoldEnd(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
                     std::int64_t first, std::int64_t n, FoldState state);

/// FoldSteps and FoldEnd for terms that are any binary64 values: the same sums, kept as binary64.
CPD_API void FoldSteps(const Accumulator& accumulator, std::int64_t k, std::int64_t count,
                       std::int64_t first, std::int64_t n, const double* const* terms,
                       FoldState64 state);
CPD_API void FoldEnd(const Accumulator& accumulator, std::int64_t terms, std::int64_t first,
                     std::int64_t n, FoldState64 state);

/// How many draws such a sum of so many terms makes, counted from draw 0. 0 where its rounding is
/// not stochastic.
CPD_API std::int64_t DrawsOfSum(const Accumulator& accumulator, std::int64_t terms);

/// Throws Error where a stochastic sum of so many terms would run out of random bits (philox.h:
/// block numbers have 24 bits), or for a scheme that sums no plain terms (block_fma, fixed).
CPD_API void CheckFold(const Accumulator& accumulator, std::int64_t terms, bool on_gpu = false);

/// y[i] = x[i] * 2^shift rounded once into `format`; stochastic draws at index first + i (any
/// first). y may be x.
CPD_API void CastScaled(const Format& format, const RoundingOptions& options, int shift,
                        std::int64_t first, std::int64_t n, const float* x, float* y);

/// The packed codes of CastScaled: PackedBytes(format, n) bytes, the bits behind the last code 0.
/// Returns the least i whose NaN has no code (its code is then unspecified), or -1.
CPD_API std::int64_t EncodeScaled(const Format& format, const RoundingOptions& options, int shift,
                                  std::int64_t first, std::int64_t n, const float* x,
                                  std::uint8_t* packed);

/// y[i] = (value of code i * 2^shift) / divisor, each of the two rounded once to binary32. NaN
/// gives 0x7FC00000.
CPD_API void DecodeScaled(const Format& format, int shift, float divisor, std::int64_t n,
                          const std::uint8_t* packed, float* y);

/// CRC-32C (Castagnoli) of n more bytes, continuing from `crc` (0 at the start), as in RFC 3720.
CPD_API std::uint32_t Crc32c(std::uint32_t crc, std::int64_t n, const void* data);

}  // namespace cpd
