// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores elements of any float type and stride, and loops in which each thread takes the
// elements of one Philox block. Compiles for host and device.
#pragma once

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/draws/philox.h"
#include "kernels/cuda/elements.h"

/// Prevents the compiler from unrolling a loop with a long body, which would take minutes.
#ifdef __CUDA_ARCH__
#define CPD_ROLLED _Pragma("unroll 1")
#else
#define CPD_ROLLED
#endif
/// Unrolls a loop over an array, so that the array stays in registers.
#ifdef __CUDA_ARCH__
#define CPD_IN_REGISTERS _Pragma("unroll")
#else
#define CPD_IN_REGISTERS
#endif

namespace cpd::cuda {

CPD_FN std::int64_t offset_of(const Strided& t, std::int64_t i) {
  if (t.rank == 1) return i * t.stride[0];
  std::int64_t offset = 0;
  for (int d = t.rank - 1; d > 0; --d) {
    offset += i % t.shape[d] * t.stride[d];
    i /= t.shape[d];
  }
  return offset + i * t.stride[0];
}

/// Returns the element at index `at` of memory, converted exactly to V. V must be double for fp64
/// memory.
template <class V>
CPD_FN V load_at(const Strided& t, std::int64_t at) {
  if (t.dtype == DType::f64) return static_cast<V>(static_cast<const double*>(t.data)[at]);
  return value_at(t.data, t.dtype, at);
}
/// Sets to[j] for j < kCount to the element at index place(j), converted exactly to V, or to 0 if
/// wanted(j) is false. The type is tested once, so that a GPU issues all loads before it waits for
/// the first.
template <class V, int kCount, class Wanted, class Place>
CPD_FN void load_together(const Strided& t, Wanted wanted, Place place, V (&to)[kCount]) {
  const auto load = [&](auto element) {
    CPD_IN_REGISTERS for (int j = 0; j < kCount; ++j) {
      to[j] = wanted(j) ? static_cast<V>(element(place(j))) : V{};
    }
  };
  if constexpr (sizeof(V) == sizeof(double)) {
    if (t.dtype == DType::f64) {
      return load([&](std::int64_t at) { return static_cast<const double*>(t.data)[at]; });
    }
  }
  if (t.dtype == DType::f32) {
    return load([&](std::int64_t at) { return value_at(t.data, DType::f32, at); });
  }
  if (t.dtype == DType::bf16) {
    return load([&](std::int64_t at) { return value_at(t.data, DType::bf16, at); });
  }
  load([&](std::int64_t at) { return value_at(t.data, DType::f16, at); });
}
/// Returns element i, converted exactly to V.
template <class V>
CPD_FN V load_element(const Strided& t, std::int64_t i) {
  return load_at<V>(t, offset_of(t, i));
}

/// Stores `value` as element i of tensor t, whose type must represent the value exactly.
template <class V>
CPD_FN void store_element(const Strided& t, std::int64_t i, V value) {
  const std::int64_t at = offset_of(t, i);
  if (t.dtype == DType::f64) {
    static_cast<double*>(t.data)[at] = convert_value<double>(value);
  } else {
    set_value_at(t.data, t.dtype, at, convert_value<float>(value));
  }
}

inline bool is_contiguous(const Strided& t, DType type) {
  return t.dtype == type && t.rank == 1 && t.stride[0] == 1;
}

inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// Returns whether a kernel may read or write a tensor in Packs (four neighboring values each) of
/// the tensor's type.
inline bool has_packs(const Strided& t) {
  return t.dtype != DType::f64 && is_contiguous(t, t.dtype) && is_aligned(t.data);
}

// --- the loop ------------------------------------------------------------------------------------

/// The source of random integers: the tensor `given`, or Philox if `given` has no data.
struct Source {
  std::uint64_t seed;
  std::uint64_t stream;
  Strided given;
};

CPD_FN Source source_of(const RoundPlan& plan, const DeviceKey& key, const Strided& given) {
  return {key.seed != nullptr ? *key.seed : plan.seed,
          key.stream != nullptr ? *key.stream : plan.stream, given};
}

/// Returns the number n of random integers that one random word yields, or 4 if rounding uses no
/// random bits. 64 * n consecutive elements share 16 Philox blocks: block b yields the integers of
/// elements b, b + 16, b + 32, ….
CPD_FN constexpr int draws_of(Rounding mode, int random_bits) {
  return mode == Rounding::stochastic ? draws_per_word(random_bits) : 4;
}

// Prevents unrolling: plans and tensors have many branches that are the same for all threads, and
// copies of such branches make compilation take minutes.

/// Returns the number of Philox indices that n elements need.
CPD_FN constexpr std::int64_t indices_of(Rounding mode, int random_bits, std::int64_t n) {
  const int elements = 64 * draws_of(mode, random_bits);
  return (n + elements - 1) / elements * 16;
}

/// Calls visit(i, R) for each element i < n whose random integer R comes from the Philox words of
/// index `index` (philox.h). 16 neighboring threads read 16 neighboring elements. Without random
/// bits, the order is the same and R is 0.
template <Rounding mode, class Visit>
CPD_FN void for_elements(std::int64_t index, std::int64_t n, const RoundPlan& plan,
                         const Source& source, Visit visit) {
  const int draws = draws_of(mode, plan.random_bits);
  const std::int64_t base = 64 * draws * (index / 16) + index % 16;
  Words<std::uint32_t> words{};
  const bool generate = mode == Rounding::stochastic && source.given.data == nullptr;
  if (generate) {
    const auto at = static_cast<std::uint64_t>(index);
    words = random_words(static_cast<std::uint32_t>(at), at, 0, source.seed, source.stream);
  }
  const std::uint32_t mask = (1U << plan.random_bits) - 1;
  const int width = 32 / draws;
  CPD_ROLLED for (std::int64_t i = base; i < n && i < base + 64 * draws; i += 16) {
    std::uint32_t random = 0;
    if constexpr (mode == Rounding::stochastic) {
      if (generate) {
        random = words.word[0] & mask;
        words = {{words.word[1], words.word[2], words.word[3], words.word[0] >> width % 32}};
      } else {
        const auto* given = static_cast<const std::uint32_t*>(source.given.data);
        random = given[offset_of(source.given, i)];
      }
    }
    visit(i, random);
  }
}

/// Does the work of for_elements for short loop bodies and stochastic rounding with generated
/// integers. Handles the four words of a Philox block without a loop, so that four elements are
/// read before the first is written.
template <class Visit>
CPD_FN void for_short_elements(std::int64_t index, std::int64_t n, const RoundPlan& plan,
                               const Source& source, Visit visit) {
  const int draws = draws_of(Rounding::stochastic, plan.random_bits);
  const std::int64_t base = 64 * draws * (index / 16) + index % 16;
  const auto at = static_cast<std::uint64_t>(index);
  Words<std::uint32_t> words =
      random_words(static_cast<std::uint32_t>(at), at, 0, source.seed, source.stream);
  const std::uint32_t mask = (1U << plan.random_bits) - 1;
  const int width = 32 / draws % 32;
  CPD_ROLLED for (std::int64_t i = base; i < n && i < base + 64 * draws; i += 64) {
    if (i + 48 < n) {
      visit(i, words.word[0] & mask);
      visit(i + 16, words.word[1] & mask);
      visit(i + 32, words.word[2] & mask);
      visit(i + 48, words.word[3] & mask);
    } else {
      CPD_ROLLED for (std::int64_t rest = i; rest < n; rest += 16) {
        visit(rest, words.word[0] & mask);
        words = {{words.word[1], words.word[2], words.word[3], 0}};
      }
      return;
    }
    for (std::uint32_t& word : words.word) word >>= width;
  }
}

/// The random integers of four neighboring elements.
struct FourIntegers {
  std::uint32_t of[4];
};

/// Does the work of for_elements in Packs (four neighboring values), for contiguous values of one
/// type and stochastic rounding with generated integers. Handles the elements whose integers have
/// the Philox indices 4 * at … 4 * at + 3. Calls visit(i, pack, integers) for elements i … i + 3.
/// Near the end of the tensor, calls rest(i, R) for each element i.
template <DType type, class Visit, class Rest>
CPD_FN void for_random_packs(std::int64_t at, std::int64_t n, const RoundPlan& plan,
                             const Source& source, const void* x, Visit visit, Rest rest) {
  const int draws = draws_of(Rounding::stochastic, plan.random_bits);
  const std::int64_t base = at / 4 * 64 * draws;
  if (base + 64 * draws > n) {
    CPD_ROLLED for (int j = 0; j < 4; ++j) for_short_elements(4 * at + j, n, plan, source, rest);
    return;
  }
  Words<std::uint32_t> words[4];
  for (int j = 0; j < 4; ++j) {
    const auto index = static_cast<std::uint64_t>(4 * at + j);
    words[j] =
        random_words(static_cast<std::uint32_t>(index), index, 0, source.seed, source.stream);
  }
  const std::uint32_t mask = (1U << plan.random_bits) - 1;
  const int width = 32 / draws % 32;
  const auto* from = static_cast<const Pack<type>*>(x);
  std::int64_t i = base + at % 4 * 4;
  CPD_ROLLED for (int d = 0; d < draws; ++d, i += 64) {
    Pack<type> packs[4];
    CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) packs[k] = from[i / 4 + 4 * k];
    CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
      visit(i + 16 * k, packs[k],
            FourIntegers{{words[0].word[k] & mask, words[1].word[k] & mask, words[2].word[k] & mask,
                          words[3].word[k] & mask}});
    }
    for (Words<std::uint32_t>& block : words) {
      for (std::uint32_t& word : block.word) word >>= width;
    }
  }
}

}  // namespace cpd::cuda
