// SPDX-License-Identifier: Apache-2.0
//
// What every function that a kernel calls is declared with. Its code is in a namespace of its own
// for each ISA (CPD_ISA), so that no object compiled with ISA flags exports code that an older CPU
// could pick up. CPD_FN is forced inline. CPD_CALL is never inlined: one copy serves all loops that
// call it, each time for a few hundred values, so that the call costs nothing.
#pragma once

#if defined(__CUDACC__)
#define CPD_FN __host__ __device__ __forceinline__
#define CPD_CALL __host__ __device__ __noinline__
#else
#define CPD_FN inline __attribute__((always_inline))
#if defined(__clang__)
#define CPD_CALL inline __attribute__((noinline))
#else
#define CPD_CALL inline __attribute__((noinline, noclone))
#endif
#endif
#ifndef CPD_ISA
#define CPD_ISA host
#endif
