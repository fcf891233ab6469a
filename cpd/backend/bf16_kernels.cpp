// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/bf16_kernels.h"

#include <string_view>

#include "cpd/backend/roster.h"

namespace cpd {

namespace avx512 {
const Bf16Table* bf16_table();
}

const Bf16Table* Bf16Kernels() {
#ifdef CPD_ISA_AVX512
  if (Kernels().name == std::string_view("avx512")) return avx512::bf16_table();
#endif
  return nullptr;
}

}  // namespace cpd
