// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction over ranks: ordered sums that are computed term by term, and casts
// with a power of two into and out of packed codes.
//
// Values are contiguous binary32 on the CPU. `key` selects the random bits, together with an
// element's index in its layer. Element i of a call has index `first` + i. Indices are below 2^40,
// and one call does not cross a multiple of 2^32.
#pragma once

#include <cstdint>

#include "cpd/backend/cpu/spans.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"

namespace cpd {

using FoldState = FoldStateOf<float>;
using FoldState64 = FoldStateOf<double>;

/// Returns the number of planes (arrays of values) in the state of sums of `terms` terms: 1 for
/// sequential, 2 for kahan (sum, compensation), 2 for chunked (outer sum, inner sum). For pairwise,
/// it is the number of bits of the integer `terms`.
CPD_API int FoldPlanes(const Accumulator& accumulator, std::int64_t terms);

/// Adds term k of each of n sums. Call it for k = 0, 1, … in this order. numeric/sums/order.h
/// defines the operations and random integers of each scheme. `terms` are any binary32 values. Each
/// operation is computed exactly and rounded once. `terms_in`: a format that holds all terms; kFp32
/// holds any. This format selects a fast path and never changes the result. Throws Error for
/// schemes block_fma and fixed.
CPD_API void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                      std::int64_t first, std::int64_t n, const float* terms, FoldState state,
                      const RandomKey& key = {});

/// Calls FoldStep for terms k … k + count - 1; the values of term k + j are at terms[j]. Calls with
/// more terms are faster for each term. Planes (the arrays of the state) are fastest if aligned to
/// 64 bytes.
CPD_API void FoldSteps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                       std::int64_t count, std::int64_t first, std::int64_t n,
                       const float* const* terms, FoldState state, const RandomKey& key = {});

/// Ends the sums after the last of `terms` terms (at least 1). Plane 0 of the state, its first
/// array, then holds the sums.
CPD_API void FoldEnd(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
                     std::int64_t first, std::int64_t n, FoldState state,
                     const RandomKey& key = {});

/// Do the same as the functions FoldSteps and FoldEnd for binary32 terms, but the terms are any
/// binary64 values, and sums are stored in binary64.
CPD_API void FoldSteps(const Accumulator& accumulator, std::int64_t k, std::int64_t count,
                       std::int64_t first, std::int64_t n, const double* const* terms,
                       FoldState64 state, const RandomKey& key = {});
CPD_API void FoldEnd(const Accumulator& accumulator, std::int64_t terms, std::int64_t first,
                     std::int64_t n, FoldState64 state, const RandomKey& key = {});

/// Returns the number of random integers that a sum of `terms` terms uses. Returns 0 unless the
/// rounding is stochastic.
CPD_API std::int64_t DrawsOfSum(const Accumulator& accumulator, std::int64_t terms);

/// Throws Error for schemes block_fma and fixed, and if a stochastic sum of `terms` terms needs
/// more random bits than exist (philox.h: block numbers have 24 bits).
CPD_API void CheckFold(const Accumulator& accumulator, std::int64_t terms);

/// Computes y[i] = x[i] * 2^shift, rounded once into `format`. Stochastic rounding uses the random
/// integer of index first + i, for any `first`. y may be x.
CPD_API void CastScaled(const Format& format, const RoundingOptions& options, int shift,
                        std::int64_t first, std::int64_t n, const float* x, float* y,
                        const RandomKey& key = {});

/// Writes the packed codes of CastScaled: PackedBytes(format, n) bytes. The bits after the last
/// code are 0. Returns the lowest i with a NaN that has no code in the format (the code written for
/// it is unspecified), or -1.
CPD_API std::int64_t EncodeScaled(const Format& format, const RoundingOptions& options, int shift,
                                  std::int64_t first, std::int64_t n, const float* x,
                                  std::uint8_t* packed, const RandomKey& key = {});

/// Decodes n codes: y[i] = (value of code i * 2^shift) / divisor. The product and the quotient are
/// each rounded once to binary32. NaN gives 0x7FC00000.
CPD_API void DecodeScaled(const Format& format, int shift, float divisor, std::int64_t n,
                          const std::uint8_t* packed, float* y);

/// Updates a CRC-32C (Castagnoli, as in RFC 3720) with n more bytes and returns it. `crc`: the CRC
/// of all bytes before, 0 at the start.
CPD_API std::uint32_t Crc32c(std::uint32_t crc, std::int64_t n, const void* data);

}  // namespace cpd
