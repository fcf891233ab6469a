/* SPDX-License-Identifier: Apache-2.0
 *
 * C functions of the slow oracle for use inside a simulator. SystemVerilog imports the functions by
 * DPI-C: `int` is int, `string` is const char*, `int unsigned` is uint32_t, and an output is a
 * pointer. The header is valid C and C++. Codes have the sign in their highest bit. Flags are sums
 * of NX 1, UF 2, OF 4, DZ 8 and NV 16.
 *
 * On an error, the functions that return int return -1 and write no output; cpd_dpi_error then
 * returns a description. All functions may be called from any thread. An output pointer may be
 * null; that output is then not written.
 */
#ifndef CPD_ORACLE_DPI_H
#define CPD_ORACLE_DPI_H

#include <stdint.h> /* NOLINT(modernize-deprecated-headers): C */

#include "cpd/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Defines a rule: the operation "cast", "add", "mul", "fma", "div" or "sqrt" on operands of one
 * format (for example "e4m3fn"), rounded once into the format `result`. `rounding` is the name of a
 * rounding mode. random_bits is ignored unless the mode is "stochastic". Returns the rule's number;
 * the first rule has number 0. */
CPD_API int cpd_dpi_rule(const char* operation, const char* operand, const char* result,
                         const char* rounding, int random_bits);

/* Computes a rule for the operands' codes a, b and c. Operands that the operation does not take are
 * ignored. r is the random integer of a stochastic rounding, and is ignored in other modes. Returns
 * 0, or -1 if the result is a NaN that its format cannot encode. */
CPD_API int cpd_dpi_compute(int rule, uint32_t a, uint32_t b, uint32_t c, uint32_t r,
                            uint32_t* result, uint32_t* flags);

/* Defines a dot product: a sum of `length` products (1…2^20) of codes of the format `operand`, by
 * an accumulator (for example "h100-fp16" or "e6m9 chunked"). The accumulator's rounding must not
 * be stochastic. All operands are initially zeros and all scales 1. Returns the dot product's
 * number; the first dot product has number 0. */
CPD_API int cpd_dpi_dot(const char* operand, const char* accumulator, int length);

/* Sets a[k] and b[k]. The operands keep their values after cpd_dpi_sum. Returns 0. */
CPD_API int cpd_dpi_set(int dot, int k, uint32_t a, uint32_t b);

/* Sets the codes of the scales of block number `block`. The accumulator must be a matrix unit that
 * takes scales. Returns 0. */
CPD_API int cpd_dpi_set_scales(int dot, int block, uint32_t a_scale, uint32_t b_scale);

/* Computes c plus the dot product. c and the result are codes of the accumulator's format. If the
 * accumulator is an integer (at most 32 bits), c is an integer in two's complement; the result is
 * one too, unless the accumulator rounds it into a format. `flags` must be null for a matrix unit
 * that does not align every term. Returns 0. */
CPD_API int cpd_dpi_sum(int dot, uint32_t c, uint32_t* result, uint32_t* flags);

/* Returns the description of this thread's last error, or "" if there was none. The text is valid
 * until this thread's next error. */
CPD_API const char* cpd_dpi_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CPD_ORACLE_DPI_H */
