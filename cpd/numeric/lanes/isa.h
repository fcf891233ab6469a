// SPDX-License-Identifier: Apache-2.0
//
// Macros that declare every function that a kernel calls. CPD_ISA is a namespace for each ISA, so
// that no object compiled with ISA flags exports code that an older CPU could link to. CPD_FN is
// forced inline. CPD_CALL is never inlined: one copy serves all loops that call it, each call for a
// few hundred values, so that its cost is negligible.
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
