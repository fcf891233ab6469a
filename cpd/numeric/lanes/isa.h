// SPDX-License-Identifier: Apache-2.0
//
// What every function that a kernel calls is declared with. Such code stands in a namespace of its
// own per ISA (CPD_ISA) and is forced inline, so that no object compiled with ISA flags exports
// code that an older CPU could pick up.
#pragma once

#if defined(__CUDACC__)
#define CPD_FN __host__ __device__ __forceinline__
#else
#define CPD_FN inline __attribute__((always_inline))
#endif
#ifndef CPD_ISA
#define CPD_ISA host
#endif
