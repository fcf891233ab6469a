// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats in passes: largest magnitudes of cells and blocks, their scales, elements.
#include <bit>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/scaled_tile.h"

namespace cpd::cuda {
namespace {

/// What kernels need that read Packs: contiguous values whose blocks of 2^shift follow one another.
struct PackLayout {
  bool fit = false;
  int shift = 0;

  PackLayout(const BlockLayout& layout, const Strided& x) {
    const auto columns = static_cast<std::uint64_t>(layout.columns);
    const bool in_one_row = layout.planes * layout.height * layout.middle == 1;
    shift = std::countr_zero(columns);
    if (layout.columns == layout.width) shift = 62;  // one block
    const bool is_power = shift == 62 || columns == std::uint64_t{1} << shift;
    fit = in_one_row && is_power && shift >= 2 && has_packs(x);
  }
};

CPD_DEVICE std::int64_t first_index() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }
CPD_DEVICE std::int64_t index_step() { return std::int64_t{gridDim.x} * kThreads; }

unsigned blocks_of(std::int64_t threads) { return blocks_for((threads + kThreads - 1) / kThreads); }

// --- largest magnitudes --------------------------------------------------------------------------

/// Raises each block's `largest`, the bits of binary32, to its largest magnitude.
__global__ void __launch_bounds__(kThreads)
    find_largest(const __grid_constant__ BlockLayout layout, const __grid_constant__ MaxItems items,
                 const __grid_constant__ Strided x, bool with_nan, std::uint32_t* largest) {
  const int lanes = items.by_warp ? 32 : 1;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  for (std::int64_t item = first_index() / lanes; item < items.size; item += index_step() / lanes) {
    std::uint32_t most = 0;
    const std::int64_t block =
        largest_of_item(layout, items, x, with_nan, item, lane, lanes, &most);
    if (items.by_warp) most = __reduce_max_sync(0xFFFFFFFFU, most);
    if (lane == 0) atomicMax(largest + block, most);
  }
}

template <DType type>
CPD_DEVICE std::uint32_t largest_bits(Pack<type> v, bool with_nan) {
  const std::uint32_t a = magnitude_bits(v.get(0), with_nan);
  const std::uint32_t b = magnitude_bits(v.get(1), with_nan);
  const std::uint32_t c = magnitude_bits(v.get(2), with_nan);
  const std::uint32_t d = magnitude_bits(v.get(3), with_nan);
  const std::uint32_t left = a > b ? a : b;
  const std::uint32_t right = c > d ? c : d;
  return left > right ? left : right;
}

/// find_largest of packed values: `lanes` threads take `packs` of a block at a time, which `items`
/// cover.
template <DType type>
__global__ void __launch_bounds__(kThreads)
    find_largest_packs(std::int64_t n, int shift, std::int64_t packs, std::int64_t items, int lanes,
                       const void* x, bool with_nan, std::uint32_t* largest) {
  const auto* from = static_cast<const Pack<type>*>(x);
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  for (std::int64_t item = first_index() / lanes; item < items; item += index_step() / lanes) {
    const std::int64_t first = item * packs;
    const std::int64_t end = first + packs < n / 4 ? first + packs : n / 4;
    std::uint32_t most = 0;
    for (std::int64_t q = first + lane; q < end; q += lanes) {
      const std::uint32_t bits = largest_bits(from[q], with_nan);
      most = bits > most ? bits : most;
    }
    if (lane == 0 && item + 1 == items) {
      for (std::int64_t i = n / 4 * 4; i < n; ++i) {
        const std::uint32_t bits = magnitude_bits(value_of<type>(x, i), with_nan);
        most = bits > most ? bits : most;
      }
    }
    if (lanes == 32) most = __reduce_max_sync(0xFFFFFFFFU, most);
    if (lane == 0) atomicMax(largest + (4 * first >> shift), most);
  }
}

/// The largest magnitude of each of a layout's blocks, in stream order.
cudaError_t largest_of(cudaStream_t stream, const BlockLayout& layout, const Strided& x,
                       bool with_nan, float* largest) {
  auto* bits = reinterpret_cast<std::uint32_t*>(largest);
  const cudaError_t cleared =
      cudaMemsetAsync(bits, 0, static_cast<std::size_t>(layout.blocks()) * sizeof(*bits), stream);
  if (cleared != cudaSuccess) return cleared;
  if (const PackLayout fast(layout, x); fast.fit) {
    const std::int64_t n = layout.width;
    const int lanes = fast.shift < 7 ? 1 : 32;
    const std::int64_t packs = std::int64_t{1} << ((fast.shift < 10 ? fast.shift : 10) - 2);
    const std::int64_t items = (n + 4 * packs - 1) / (4 * packs);
    with_pack_type(x.dtype, [&]<DType type>() {
      start_kernel(find_largest_packs<type>, blocks_of(items * lanes), kThreads, stream, n,
                   fast.shift, packs, items, lanes, x.data, with_nan, bits);
    });
    return cudaGetLastError();
  }
  const MaxItems items = max_items(layout);
  start_kernel(find_largest, blocks_of(items.size * (items.by_warp ? 32 : 1)), kThreads, stream,
               layout, items, x, with_nan, bits);
  return cudaGetLastError();
}

// --- scales --------------------------------------------------------------------------------------

/// Forms the second level's scales, or takes the caller's; without such a level the one is 1.
__global__ void __launch_bounds__(kThreads)
    form_cells(const __grid_constant__ ScalesCall of, std::int64_t count) {
  for (std::int64_t c = first_index(); c < count; c += index_step()) {
    const bool forms = of.two_levels && of.given.cells == nullptr;
    if (forms && of.given.largest != nullptr) of.cells.largest[c] = fabsf(of.given.largest[c]);
    if (forms) {
      form_outer(of.call.plan, of.cells, c);
      continue;
    }
    of.cells.largest[c] = 0;
    of.cells.scale[c] = of.two_levels ? of.given.cells[c] : 1;
    of.cells.encode[c] = 1;
  }
}

/// Forms the scales of blocks from `largest`, or takes the caller's.
__global__ void __launch_bounds__(kThreads)
    form_blocks(const __grid_constant__ ScalesCall of, double share, const float* largest,
                ScaleTables tables, std::int64_t count) {
  for (std::int64_t b = first_index(); b < count; b += index_step()) {
    if (of.given.blocks != nullptr) {
      take_scale(of.call, of.cells, b, of.given.blocks[b], tables);
    } else {
      form_scale(of.call, of.cells, share, b, fabsf(largest[b]), tables);
    }
  }
}

/// The errors of blocks' rows, by a candidate's scales.
__global__ void __launch_bounds__(kThreads)
    find_errors(const __grid_constant__ ScalesCall of, ScaleTables tables, std::int64_t count,
                double* errors) {
  const std::int64_t rows = of.call.layout.rows;
  for (std::int64_t at = first_index(); at < count * rows; at += index_step()) {
    const std::int64_t b = at / rows;
    if (at % rows >= rows_of(of.call.layout, b)) continue;
    errors[at] = error_of_row(of.call, of.nearest, of.choose == ScaleChoice::mse, of.cells, tables,
                              b, at % rows);
  }
}

__global__ void __launch_bounds__(kThreads)
    choose_scales(const __grid_constant__ ScalesCall of, ScaleTables other, std::int64_t count,
                  double* usual, double* others) {
  for (std::int64_t b = first_index(); b < count; b += index_step()) {
    choose_scale(of.call, b, usual, others, of.call.tables, other);
  }
}

/// Replaces scales by the other candidate's where that has the smaller error.
cudaError_t choose(const Launch& launch, const ScalesCall& of, const float* largest) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const std::int64_t count = of.call.layout.blocks();
  const std::int64_t rows = count * of.call.layout.rows;
  Array<float> memory(launch, 3 * count);
  Array<double> errors(launch, 2 * rows);
  if (memory.status() != cudaSuccess) return memory.status();
  if (errors.status() != cudaSuccess) return errors.status();
  const ScaleTables other{memory.data(), memory.data() + count, memory.data() + 2 * count};
  start_kernel(form_blocks, blocks_of(count), kThreads, stream, of, kOtherShare, largest, other,
               count);
  start_kernel(find_errors, blocks_of(rows), kThreads, stream, of, of.call.tables, count,
               errors.data());
  start_kernel(find_errors, blocks_of(rows), kThreads, stream, of, other, count,
               errors.data() + rows);
  start_kernel(choose_scales, blocks_of(count), kThreads, stream, of, other, count, errors.data(),
               errors.data() + rows);
  return cudaGetLastError();
}

// --- elements ------------------------------------------------------------------------------------

template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    cast_elements(const __grid_constant__ ScaledCall call, const __grid_constant__ Strided out) {
  const RoundPlan& plan = call.plan.element;
  const Source source = source_of(plan, call.key, call.random);
  const std::int64_t indices = indices_of(mode, plan.random_bits, call.n);
  for (std::int64_t at = first_index(); at < indices; at += index_step()) {
    for_elements<mode>(at, call.n, plan, source, [&](std::int64_t i, std::uint32_t r) {
      store_element(out, i, cast_element<mode>(call, i, r));
    });
  }
}

/// cast_element out of line, for the few values that the kernels below do not take.
template <Rounding mode>
CPD_CALL float cast_alone(const ScaledCall& call, std::int64_t i, std::uint32_t random) {
  return cast_element<mode>(call, i, random);
}

/// Casts packed values in a route of binary32; blocks whose scales are outside of it take the wide
/// one.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_packs(const __grid_constant__ ScaledCall call, int shift, const void* x, void* out) {
  const auto* from = static_cast<const Pack<type>*>(x);
  auto* to = static_cast<Pack<type>*>(out);
  for (std::int64_t q = first_index(); q < call.n / 4; q += index_step()) {
    const ElementScale<float> at = scale_of(call.tables, 4 * q >> shift);
    if (route_at(call, at.scale) == kRoute) {
      to[q] = changed<Stored::nearest>(
          from[q], [&](float v) { return cast_value<R, kRoute>(call.plan, v, at, 0); });
      continue;
    }
    float wide[4];
    CPD_ROLLED for (int k = 0; k < 4; ++k) wide[k] = cast_alone<R::mode>(call, 4 * q + k, 0);
    to[q].template set<Stored::nearest>(wide[0], wide[1], wide[2], wide[3]);
  }
  const std::int64_t rest = call.n / 4 * 4 + first_index();
  if (rest < call.n)
    set_value_of<type, Stored::nearest>(out, rest, cast_alone<R::mode>(call, rest, 0));
}

/// The same of contiguous values, stochastically.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_stochastic(const __grid_constant__ ScaledCall call, int shift, const void* x, void* out) {
  const RoundPlan& plan = call.plan.element;
  const Source source = source_of(plan, call.key, {});
  const std::int64_t indices = indices_of(Rounding::stochastic, plan.random_bits, call.n);
  for (std::int64_t index = first_index(); index < indices; index += index_step()) {
    for_short_elements(index, call.n, plan, source, [&](std::int64_t i, std::uint32_t r) {
      const ElementScale<float> at = scale_of(call.tables, i >> shift);
      const float value = route_at(call, at.scale) == kRoute
                              ? cast_value<R, kRoute>(call.plan, value_of<type>(x, i), at, r)
                              : cast_alone<Rounding::stochastic>(call, i, r);
      set_value_of<type, Stored::nearest>(out, i, value);
    });
  }
}

/// Queues one of these kernels where the tensors and the route allow it; false where they do not.
bool start_packs(cudaStream_t stream, const ScaledCall& call, const Strided& out) {
  const PackLayout fast(call.layout, call.x);
  if (!fast.fit || !has_packs(out) || call.x.dtype != out.dtype ||
      call.route == ElementRoute::wide || call.random.data != nullptr) {
    return false;
  }
  const unsigned blocks = blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads));
  const auto start = [&]<class R, ElementRoute kRoute, DType type>() {
    if constexpr (R::mode == Rounding::stochastic) {
      start_kernel(cast_stochastic<R, kRoute, type>, blocks, kThreads, stream, call, fast.shift,
                   call.x.data, out.data);
    } else {
      start_kernel(cast_packs<R, kRoute, type>, blocks, kThreads, stream, call, fast.shift,
                   call.x.data, out.data);
    }
  };
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    with_form<mode>(call.plan.element.form, [&]<class R>() {
      with_pack_type(out.dtype, [&]<DType type>() {
        if (call.route == ElementRoute::multiply) {
          return start.template operator()<R, ElementRoute::multiply, type>();
        }
        start.template operator()<R, ElementRoute::divide, type>();
      });
    });
  });
  return true;
}

template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    encode_elements(const __grid_constant__ ScaledCall call, std::uint8_t* packed,
                    unsigned long long* first_nan) {
  const RoundPlan& plan = call.plan.element;
  encode_tiles<mode>(plan, source_of(plan, call.key, call.random), call.n, packed,
                     [&](std::int64_t i, std::uint32_t r) {
                       bool is_lost = false;
                       const std::uint32_t code = code_element<mode>(call, i, r, &is_lost);
                       if (is_lost) note_first(first_nan, i);
                       return code;
                     });
}

__global__ void __launch_bounds__(kThreads)
    decode_elements(const __grid_constant__ ScaledCall call, const std::uint8_t* packed,
                    const __grid_constant__ Strided out) {
  decode_tiles(call.plan.element.bits, call.n, packed, [&](std::int64_t i, std::uint32_t code) {
    store_element(out, i, decode_element(call, i, code));
  });
}

}  // namespace

int form_scales(const Launch& launch, const ScalesCall& of) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const bool makes_nan = of.call.plan.makes_nan;
  const std::int64_t cells = of.two_levels ? of.cell_layout.blocks() : 1;
  if (of.two_levels && of.given.cells == nullptr && of.given.largest == nullptr) {
    const cudaError_t found =
        largest_of(stream, of.cell_layout, of.call.x, makes_nan, of.cells.largest);
    if (found != cudaSuccess) return found;
  }
  start_kernel(form_cells, blocks_of(cells), kThreads, stream, of, cells);
  const std::int64_t blocks = of.call.layout.blocks();
  const bool is_given = of.given.largest != nullptr && !of.two_levels;
  Array<float> found(launch, blocks);
  if (found.status() != cudaSuccess) return found.status();
  const float* largest = is_given ? of.given.largest : found.data();
  if (of.given.blocks == nullptr && !is_given) {
    const cudaError_t status =
        largest_of(stream, of.call.layout, of.call.x, makes_nan, found.data());
    if (status != cudaSuccess) return status;
  }
  start_kernel(form_blocks, blocks_of(blocks), kThreads, stream, of, 1.0, largest, of.call.tables,
               blocks);
  const cudaError_t formed = cudaGetLastError();
  const bool chooses = of.choose != ScaleChoice::none && of.given.blocks == nullptr && !is_given;
  return formed == cudaSuccess && chooses ? choose(launch, of, largest) : formed;
}

int cast_scaled(const Launch& launch, const ScaledCall& call, const Strided& out) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (start_packs(stream, call, out)) return cudaGetLastError();
  const unsigned blocks = blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads));
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(cast_elements<mode>, blocks, kThreads, stream, call, out);
  });
  return cudaGetLastError();
}

int encode_scaled(const Launch& launch, const ScaledCall& call, std::uint8_t* packed,
                  unsigned long long* first_nan) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(encode_elements<mode>, blocks_for(tiles_of(call.n)), kThreads, stream, call,
                 packed, first_nan);
  });
  return cudaGetLastError();
}

int decode_scaled(const Launch& launch, const ScaledCall& call, const std::uint8_t* packed,
                  const Strided& out) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(decode_elements, blocks_for(tiles_of(call.n)), kThreads,
               static_cast<cudaStream_t>(launch.stream), call, packed, out);
  return cudaGetLastError();
}

}  // namespace cpd::cuda
