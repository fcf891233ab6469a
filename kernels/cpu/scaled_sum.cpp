// SPDX-License-Identifier: Apache-2.0
//
// For products whose operands have scales: multiplies each sum over a block of k by the scales of
// its row and column, and adds it to the total over all blocks (numeric/scaled/scaled_sum.h).
#include "cpd/numeric/scaled/scaled_sum.h"

#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;

}  // namespace

void add_scaled_sums(int64_t rows, int64_t columns, int64_t stride, const float* a_scale,
                     const float* b_scale, float* sum, float* total) {
  for (int64_t i = 0; i < rows; ++i, sum += stride, total += stride) {
    const F of_row = splat<F>(a_scale[i]);
    for (int64_t j = 0; j < columns; j += Lanes<F>::count) {
      store(total + j,
            add_scaled(load<F>(total + j), of_row, load<F>(b_scale + j), load<F>(sum + j)));
      store(sum + j, F{});
    }
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
