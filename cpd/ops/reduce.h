// SPDX-License-Identifier: Apache-2.0
//
// The parts of a reduction over ranks: ordered sums taken term by term, and casts with a power of
// two into and out of packed codes. `key` selects random bits, by element. Values are contiguous
// binary32 on the CPU; `first` + i is the index of element i in its layer, on which random bits
// depend: below 2^40, with the range between two multiples of 2^32.
#pragma once

#include <cstdint>

#include "cpd/backend/cpu/spans.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"

namespace cpd {

using FoldState = FoldStateOf<float>;
using FoldState64 = FoldStateOf<double>;

/// The number of planes that a sum of `terms` terms needs: 1 (sequential), 2 (kahan: sum,
/// compensation; chunked: outer sum, inner sum), for pairwise one for each bit of `terms`.
CPD_API int FoldPlanes(const Accumulator& accumulator, std::int64_t terms);

/// Adds term number k (0, 1, …, in this order) to the n sums, by the operations and draws that
/// numeric/sums/order.h defines for each scheme. `terms` are any binary32 values; each
/// operation is one exact result rounded once. Throws Error for block_fma and fixed. `terms_in`: a
/// format of which all terms are values (kFp32: any); it only chooses the route, never the result.
CPD_API void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                      std::int64_t first, std::int64_t n, const float* terms, FoldState state,
                      const RandomKey& key = {});

/// FoldStep for terms k … k + count - 1, number k + j at terms[j]; faster, the more terms there
/// are, and fastest where the planes are aligned to 64 bytes.
CPD_API void FoldSteps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                       std::int64_t count, std::int64_t first, std::int64_t n,
                       const float* const* terms, FoldState state, const RandomKey& key = {});

/// Ends sums after the last of `terms` >= 1 terms: leaves them in plane 0.
CPD_API void FoldEnd(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
                     std::int64_t first, std::int64_t n, FoldState state,
                     const RandomKey& key = {});

/// FoldSteps and FoldEnd for terms of any binary64 values. Sums are stored as binary64.
CPD_API void FoldSteps(const Accumulator& accumulator, std::int64_t k, std::int64_t count,
                       std::int64_t first, std::int64_t n, const double* const* terms,
                       FoldState64 state, const RandomKey& key = {});
CPD_API void FoldEnd(const Accumulator& accumulator, std::int64_t terms, std::int64_t first,
                     std::int64_t n, FoldState64 state, const RandomKey& key = {});

/// The number of draws that a sum of `terms` terms takes, counted from draw 0. 0 where its rounding
/// is not stochastic.
CPD_API std::int64_t DrawsOfSum(const Accumulator& accumulator, std::int64_t terms);

/// Throws Error where a stochastic sum of `terms` terms would need more random bits than there are
/// (philox.h: block numbers have 24 bits), or for schemes block_fma and fixed.
CPD_API void CheckFold(const Accumulator& accumulator, std::int64_t terms);

/// y[i] = x[i] * 2^shift rounded once into `format`; stochastic draws at index first + i (any
/// first). y may be x.
CPD_API void CastScaled(const Format& format, const RoundingOptions& options, int shift,
                        std::int64_t first, std::int64_t n, const float* x, float* y,
                        const RandomKey& key = {});

/// Writes the packed codes of CastScaled: PackedBytes(format, n) bytes, the bits after the last
/// code 0. Returns the least i whose NaN has no code (its code is then unspecified), or -1.
CPD_API std::int64_t EncodeScaled(const Format& format, const RoundingOptions& options, int shift,
                                  std::int64_t first, std::int64_t n, const float* x,
                                  std::uint8_t* packed, const RandomKey& key = {});

/// y[i] = (value of code i * 2^shift) / divisor, each of the two rounded once to binary32. NaN
/// gives 0x7FC00000.
CPD_API void DecodeScaled(const Format& format, int shift, float divisor, std::int64_t n,
                          const std::uint8_t* packed, float* y);

/// CRC-32C (Castagnoli) of n more bytes, continuing from `crc` (0 at the start), as in RFC 3720.
CPD_API std::uint32_t Crc32c(std::uint32_t crc, std::int64_t n, const void* data);

}  // namespace cpd
