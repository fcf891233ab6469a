/* SPDX-License-Identifier: Apache-2.0
 *
 * C functions over the slow oracle, for use inside a simulator: SystemVerilog imports them by DPI-C
 * (`int` is int, `string` const char*, `int unsigned` uint32_t, an output a pointer). A header of C
 * and C++. Codes are whole, sign bit on top; flags are NX 1, UF 2, OF 4, DZ 8, NV 16.
 *
 * Functions that return int give -1 on an error, of which cpd_dpi_error says what is wrong, and
 * write no output. They may be called from any thread.
 */
#ifndef CPD_ORACLE_DPI_H
#define CPD_ORACLE_DPI_H

#include <stdint.h> /* NOLINT(modernize-deprecated-headers): C */

#include "cpd/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One rounding of a cast, add, mul, fma, div or sqrt ("cast" …) of operands of one format,
 * "e4m3fn", into another; `rounding` is a mode's name, random_bits counts where that is
 * "stochastic". Gives the rule's number, from 0 on. */
CPD_API int cpd_dpi_rule(const char* operation, const char* operand, const char* result,
                         const char* rounding, int random_bits);

/* That rounding of codes; those that the operation does not take are ignored, as is r but for
 * stochastic rounding. Gives 0. */
CPD_API int cpd_dpi_compute(int rule, uint32_t a, uint32_t b, uint32_t c, uint32_t r,
                            uint32_t* result, uint32_t* flags);

/* A sum of `length` products of codes of one format by an accumulator, "h100-fp16" or
 * "e6m9 chunked", with rounding that is not stochastic. Gives the dot product's number, from 0 on;
 * its operands are zeros, its scales 1. */
CPD_API int cpd_dpi_dot(const char* operand, const char* accumulator, int length);

/* Sets a[k] and b[k], which stay. Gives 0. */
CPD_API int cpd_dpi_set(int dot, int k, uint32_t a, uint32_t b);

/* Sets the scales' codes of the block of the given number, of a unit that takes scales. Gives 0. */
CPD_API int cpd_dpi_set_scales(int dot, int block, uint32_t a_scale, uint32_t b_scale);

/* The sum from c, a code of the accumulator's format, on; of an integer (at most 32 bits) c and the
 * result are integers in two's complement. `flags` is null for a matrix unit that does not align
 * every term. Gives 0. */
CPD_API int cpd_dpi_sum(int dot, uint32_t c, uint32_t* result, uint32_t* flags);

/* What was wrong in this thread's last error; "" before one. Valid until the next. */
CPD_API const char* cpd_dpi_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CPD_ORACLE_DPI_H */
