// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: loops over contiguous memory that call cpd/numeric. Compiled once per ISA with
// CPD_ISA set to its name and the ISA's flags; each ISA's objects export one function, the getter
// of their table.
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {

std::uint64_t g_calls = 0;

namespace {

#define CPD_STRING2(x) #x
#define CPD_STRING(x) CPD_STRING2(x)

std::uint64_t calls() { return __atomic_load_n(&g_calls, __ATOMIC_RELAXED); }

constexpr KernelTable kTable = {
    .name = CPD_STRING(CPD_ISA),
    .lanes = Lanes<F>::count,
    .calls = calls,
    .round_f32 = round_f32,
    .round_f64 = round_f64,
    .flags_f32 = flags_f32,
    .flags_f64 = flags_f64,
    .round_bf16 = round_bf16,
    .widen_bf16 = widen_bf16,
    .round_rows = round_rows,
    .round_scaled = round_scaled,
    .encode_f32 = encode_f32,
    .encode_f64 = encode_f64,
    .decode_f32 = decode_f32,
    .decode_scaled = decode_scaled,
    .arithmetic = arithmetic,
    .arithmetic_f64 = arithmetic_f64,
    .to_odd_f32 = to_odd_f32,
    .to_odd_f64 = to_odd_f64,
    .fold = fold,
    .fold_f64 = fold_f64,
    .fold_path = fold_path,
    .max_abs = max_abs,
    .block_max = block_max,
    .column_max = column_max,
    .outer_scales = outer_scales,
    .block_scales = block_scales,
    .given_scales = given_scales,
    .spread = spread,
    .round_blocks = round_blocks,
    .round_blocks_bf16 = round_blocks_bf16,
    .encode_blocks = encode_blocks,
    .scale_blocks = scale_blocks,
    .gemm_rows = kGemmRows,
    .gemm_columns = kGemmColumns,
    .pack = pack,
    .gemm = gemm,
    .gemm_path = gemm_path,
    .block_fma = block_fma,
    .fixed = fixed,
    .add_scaled_sums = add_scaled_sums,
    .find_large = find_large,
    .random_integers = random_integers,
    .transpose = transpose,
    .hadamard = hadamard,
    .one_bit_means = one_bit_means,
    .one_bit_encode = one_bit_encode,
    .one_bit_decode = one_bit_decode,
    .crc32c = crc32c,
    .encode_levels = encode_levels,
    .decode_levels = decode_levels,
    .moments = moments,
    .cast_power_blocks = cast_power_blocks,
};

}  // namespace

const KernelTable& kernel_table() { return kTable; }

}  // namespace CPD_ISA
}  // namespace cpd
