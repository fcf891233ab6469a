// SPDX-License-Identifier: Apache-2.0
//
// Single operations on a GPU: one rounding an element, in binary32 where that is enough
// (short_exact.h), else in binary64.
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/quotient.h"
#include "cpd/numeric/round/short_exact.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {
namespace {

/// A call and its plan, for a kernel's parameters.
struct Task : ArithmeticCall {
  RoundPlan rounding;
};

/// x op y (op z) rounded to odd, of binary32 values or, with kAny, of any binary64 values, which
/// have no quotients and square roots; `down` as in exact_sum.
template <bool kAny>
CPD_FN double exact_result(Operation op, double x, double y, double z, bool down) {
  if constexpr (!kAny) {
    if (op == Operation::div) return quotient_to_odd(x, y);
    if (op == Operation::sqrt) return root_to_odd(x);
  }
  if (op == Operation::mul) return kAny ? product_as_seen(x, y) : exact_product(x, y);
  if (op == Operation::add) return kAny ? sum_as_seen(x, y, down) : exact_sum(x, y, down);
  return kAny ? fma_as_seen(x, y, z, down) : exact_sum(exact_product(x, y), z, down);
}

/// Computes element i in binary64. kAny: an operand is binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate_one(const Task& call, std::int64_t i, std::uint32_t random) {
  const auto x = load_element<double>(call.x, i);
  const double y = call.op != Operation::sqrt ? load_element<double>(call.y, i) : 0.0;
  const double z = call.op == Operation::fma ? load_element<double>(call.z, i) : 0.0;
  const double exact = exact_result<kAny>(call.op, x, y, z, Rule<mode>::is_down(call.rounding));
  store_element(call.out, i, round<mode>(exact, std::uint64_t{random}, call.rounding));
}

/// The share of an operation of thread number `thread` of `threads`. kAny: an operand is binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate(const Task& call, std::int64_t thread, std::int64_t threads) {
  const Source source = source_of(call.rounding, call.key, call.random);
  const std::int64_t indices = indices_of(mode, call.rounding.random_bits, call.n);
  CPD_ROLLED for (std::int64_t at = thread; at < indices; at += threads) {
    for_elements<mode>(
        at, call.n, call.rounding, source,
        [&](std::int64_t i, std::uint32_t random) { operate_one<mode, kAny>(call, i, random); });
  }
}

// --- Packs ---------------------------------------------------------------------------------------

/// Returns whether operate_packs computes a call: its tensors are of one type and have Packs, its
/// plan rounds_from_odd, random integers are Philox's.
inline bool takes_packs(const Task& call) {
  const auto fits = [&](const Strided& t) { return t.dtype == call.x.dtype && has_packs(t); };
  return rounds_from_odd(call.rounding) && call.random.data == nullptr && fits(call.x) &&
         fits(call.out) && (call.op == Operation::sqrt || fits(call.y)) &&
         (call.op != Operation::fma || fits(call.z));
}

/// Computes elements i … i + 3, out of line, for those that binary32 leaves in doubt.
template <Rounding mode>
CPD_CALL void operate_in_doubt(const Task& call, std::int64_t i, FourIntegers random) {
  CPD_ROLLED for (int j = 0; j < 4; ++j) operate_one<mode, false>(call, i + j, random.of[j]);
}

/// Computes elements i … i + 3 in binary32 (short_exact.h) by the plan's rule R, or in binary64
/// where that leaves a doubt; their x are given.
template <class R, DType type>
CPD_FN void operate_pack(const Task& call, std::int64_t i, Pack<type> x, FourIntegers random) {
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

/// `operate` of a call that takes_packs, of tensors of that type, whose plan has the rule R.
template <class R, DType type>
CPD_FN void operate_packs(const Task& call, std::int64_t thread, std::int64_t threads) {
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

// --- kernels -----------------------------------------------------------------------------------

static_assert(sizeof(Task) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <Rounding mode, bool kAny>
__global__ void __launch_bounds__(kThreads) operate_elements(const __grid_constant__ Task call) {
  operate<mode, kAny>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                      std::int64_t{gridDim.x} * kThreads);
}

template <class R, DType type>
__global__ void __launch_bounds__(kThreads) operate_all_packs(const __grid_constant__ Task call) {
  operate_packs<R, type>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                         std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int arithmetic(const Launch& launch, const ArithmeticCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads));
  const Task task{call, *call.plan};
  if (takes_packs(task)) {
    with_short_rule(task.rounding, [&]<class R>() {
      with_pack_type(call.x.dtype, [&]<DType type>() {
        start_kernel(operate_all_packs<R, type>, blocks, kThreads, stream, task);
      });
    });
    return cudaGetLastError();
  }
  // z of binary64 may be any number: beside it the product of binary32 values is exact.
  const bool any =
      call.x.dtype == DType::f64 || (call.op != Operation::sqrt && call.y.dtype == DType::f64);
  with_mode(task.rounding.mode, [&]<Rounding mode>() {
    start_kernel(any ? operate_elements<mode, true> : operate_elements<mode, false>, blocks,
                 kThreads, stream, task);
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
