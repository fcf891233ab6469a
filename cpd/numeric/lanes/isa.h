// SPDX-License-Identifier: Apache-2.0
//
// Macros that declare every function that a kernel calls. CPD_ISA is a separate namespace for each
// instruction set (ISA). So no object that is compiled with an ISA's flags exports code to which an
// older CPU could link. CPD_FN forces a function inline. CPD_CALL keeps a function from being
// inlined: all loops share one copy. Each call processes a few hundred values, so the cost of a
// call is negligible.
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
