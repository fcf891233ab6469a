// SPDX-License-Identifier: Apache-2.0
//
// Computes single operations on contiguous tensors of one type. A thread computes four elements at
// a time, in binary32 if that suffices (short_exact.h). The general kernel operate_elements reads
// types and strides at run time and computes in binary64.
#include "cpd/numeric/round/short_exact.h"
#include "kernels/cuda/arithmetic_elements.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"

namespace cpd::cuda {
namespace {

/// Computes elements i … i + 3 in binary64, out of line, if binary32 may not give the right
/// results.
template <Rounding mode>
CPD_CALL void operate_in_doubt(const ArithmeticTask& call, std::int64_t i, FourIntegers random) {
  CPD_ROLLED for (int j = 0; j < 4; ++j) operate_one<mode, false>(call, i + j, random.of[j]);
}

/// Computes elements i … i + 3, rounded by rule R. Computes in binary32 (short_exact.h), or in
/// binary64 if the binary32 result may be wrong. `x` holds these elements of the first operand,
/// which the caller has read; other operands are read here.
template <class R, DType type>
CPD_FN void operate_pack(const ArithmeticTask& call, std::int64_t i, Pack<type> x,
                         FourIntegers random) {
  constexpr int kSize = Pack<type>::kSize;
  const auto pack_of = [i](const Strided& t) {
    return static_cast<const Pack<type>*>(t.data)[i / kSize];
  };
  with_operation(call.op, [&]<Operation op>() {
    Pack<type> y{};
    Pack<type> z{};
    if constexpr (op != Operation::sqrt) y = pack_of(call.y);
    if constexpr (op == Operation::fma) z = pack_of(call.z);
    Doubt<float> doubt;
    float odd[kSize];
    CPD_IN_REGISTERS for (int j = 0; j < kSize; ++j) {
      odd[j] = operation_to_odd<op, true>(x.get(j), y.get(j), z.get(j), doubt);
    }
    if (doubt.any()) return operate_in_doubt<R::mode>(call, i, random);
    const auto rounded = [&](int j) { return round<R>(odd[j], random.of[j], call.rounding); };
    Pack<type> result;
    result.set(rounded(0), rounded(1), rounded(2), rounded(3));
    static_cast<Pack<type>*>(call.out.data)[i / kSize] = result;
  });
}

/// Computes the share of thread number `thread` of `threads`. R is the plan's rounding rule.
template <class R, DType type>
CPD_FN void operate_packs(const ArithmeticTask& call, std::int64_t thread, std::int64_t threads) {
  const auto one = [&](std::int64_t i, std::uint32_t random) {
    operate_one<R::mode, false>(call, i, random);
  };
  if constexpr (R::mode == Rounding::stochastic) {
    const Source source = source_of(call.rounding, call.key, {});
    const std::int64_t indices = indices_of(R::mode, call.rounding.random_bits, call.n);
    CPD_ROLLED for (std::int64_t at = thread; at < indices / 4; at += threads) {
      for_random_packs<type>(
          at, call.n, call.rounding, source, call.x.data,
          [&](std::int64_t i, Pack<type> x, FourIntegers random) {
            operate_pack<R>(call, i, x, random);
          },
          one);
    }
  } else {
    constexpr int kSize = Pack<type>::kSize;
    const auto* x = static_cast<const Pack<type>*>(call.x.data);
    const std::int64_t packs = call.n / kSize;
    CPD_ROLLED for (std::int64_t i = thread; i < packs; i += threads) {
      operate_pack<R>(call, kSize * i, x[i], {});
    }
    CPD_ROLLED for (std::int64_t i = kSize * packs + thread; i < call.n; i += threads) {
      one(i, 0);
    }
  }
}

template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    operate_all_packs(const __grid_constant__ ArithmeticTask call) {
  operate_packs<R, type>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                         std::int64_t{gridDim.x} * kThreads);
}

/// Returns true if all tensors have one type and are aligned to Packs (four neighboring values
/// each), rounds_from_odd is true for the plan, and random integers come from Philox.
bool packed_arithmetic_applies(const ArithmeticCall& call) {
  const auto fits = [&](const Strided& t) { return t.dtype == call.x.dtype && has_packs(t); };
  return rounds_from_odd(*call.plan) && call.random.data == nullptr && fits(call.x) &&
         fits(call.out) && (call.op == Operation::sqrt || fits(call.y)) &&
         (call.op != Operation::fma || fits(call.z));
}
int start_packed_arithmetic(const Launch& launch, const ArithmeticCall& call) {
  const ArithmeticTask task{call, *call.plan};
  with_short_rule(task.rounding, [&]<class R>() {
    with_pack_type(call.x.dtype, [&]<DType type>() {
      start_kernel(operate_all_packs<R, type>,
                   blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads)), kThreads,
                   static_cast<cudaStream_t>(launch.stream), task);
    });
  });
  return cudaGetLastError();
}
const FastKernel<arithmetic> kPackedArithmetic(FastPath::packed_arithmetic,
                                               packed_arithmetic_applies, start_packed_arithmetic);

}  // namespace
}  // namespace cpd::cuda
