// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats on a GPU by the general path: separate kernels find the largest magnitudes of
// cells and blocks, compute the scales, and cast the elements. A cell is the range of one outer
// scale.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_calls.cuh"

namespace cpd::cuda {
namespace {

// --- largest magnitudes --------------------------------------------------------------------------

/// Raises largest[b] to the largest magnitude of each block b. Magnitudes are binary32 bit
/// patterns.
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

/// Does the work of find_largest for n contiguous values. The values are divided into `items`
/// ranges of `packs` Packs (four neighboring values each); a range lies in one block. `lanes`
/// threads together read a range.
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

/// Raises *largest to the largest magnitude of n contiguous values. A thread reads four Packs (four
/// neighboring values each) at a time; a thread block performs one atomic operation.
template <DType type>
__global__ void __launch_bounds__(kThreads)
    find_largest_of_all(std::int64_t n, const void* x, bool with_nan, std::uint32_t* largest) {
  __shared__ std::uint32_t of_block[1];
  if (threadIdx.x == 0) of_block[0] = 0;
  __syncthreads();
  const auto* from = static_cast<const Pack<type>*>(x);
  const std::int64_t step = index_step();
  std::uint32_t most = 0;
  std::int64_t q = first_index();
  for (; q + 3 * step < n / 4; q += 4 * step) {
    Pack<type> packs[4];
    CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) packs[k] = from[q + k * step];
    CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) most = max(most, largest_bits(packs[k], with_nan));
  }
  CPD_ROLLED for (; q < n / 4; q += step) most = max(most, largest_bits(from[q], with_nan));
  const std::int64_t rest = n / 4 * 4 + first_index();
  if (rest < n) most = max(most, magnitude_bits(value_of<type>(x, rest), with_nan));
  most = __reduce_max_sync(kAllLanes, most);
  if (threadIdx.x % kWarpSize == 0) atomicMax(of_block, most);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(largest, of_block[0]);
}

/// Queues the kernels that find the largest magnitude of each block of a layout.
cudaError_t largest_of(cudaStream_t stream, const BlockLayout& layout, const Strided& x,
                       bool with_nan, float* largest) {
  auto* bits = reinterpret_cast<std::uint32_t*>(largest);
  const cudaError_t cleared =
      cudaMemsetAsync(bits, 0, static_cast<std::size_t>(layout.blocks()) * sizeof(*bits), stream);
  if (cleared != cudaSuccess) return cleared;
  if (const PackLayout fast(layout, x); fast.fit) {
    const std::int64_t n = layout.width;
    if (layout.columns == n) {
      with_pack_type(x.dtype, [&]<DType type>() {
        start_kernel(find_largest_of_all<type>, blocks_of(n / 16 + 1), kThreads, stream, n, x.data,
                     with_nan, bits);
      });
      return cudaGetLastError();
    }
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

/// Stores the outer scales (each shared by several blocks): the caller's, or computed ones. In a
/// format without outer scales, the single outer scale is 1.
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

/// Stores the scales of blocks in `tables`: the caller's scales if the call has any, else the
/// scales that follow from the blocks' largest magnitudes in `largest`.
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

/// Computes, for each row of each block, the sum of the errors of its elements after a cast with
/// the scales in `tables`.
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

/// Computes a second candidate for the scales of each block. Replaces the block's scales by this
/// candidate if it causes a smaller error.
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

// --- short blocks --------------------------------------------------------------------------------

/// Queues the kernel that computes the scales of short blocks of neighboring values. Returns false
/// if the call has other blocks.
bool start_short_forms(cudaStream_t stream, const ScalesCall& of) {
  const int shift = neighbors_shift(of.call);
  if (shift == 0 || !forms_by_largest(of)) return false;
  with_neighbors(of, shift, [&]<DType type, int kPacks>(unsigned count) {
    start_kernel(form_short_blocks<type, kPacks>, count, kThreads, stream, of,
                 ShortForm(of.call.plan), shift);
  });
  return true;
}

/// Queues a kernel that computes the scales of short blocks and casts the elements to nearest-even
/// in one pass. Returns false if the call needs two passes.
bool start_short_casts(cudaStream_t stream, const ScalesCall& of) {
  const ScaledCall& call = of.call;
  const int shift = neighbors_shift(call);
  if (shift == 0 || !is_nearest_by_addition(call) || !forms_by_largest(of) ||
      call.x.dtype != of.out.dtype || !has_packs(of.out)) {
    return false;
  }
  with_neighbors(of, shift, [&]<DType type, int kPacks>(unsigned count) {
    start_kernel(cast_short_blocks<NearestByAddition, ElementRoute::multiply, type, kPacks>, count,
                 kThreads, stream, of, ShortForm(call.plan), shift, of.out.data);
  });
  return true;
}

// --- elements ------------------------------------------------------------------------------------

/// Queues a kernel that casts Packs (four neighboring values each). Returns false if the kernel
/// does not support the tensors or the call's route (method of division by scales).
bool start_packs(cudaStream_t stream, const ScaledCall& call, const Strided& out) {
  const PackLayout fast(call.layout, call.x);
  if (!fast.fit || !has_packs(out) || call.x.dtype != out.dtype ||
      call.route == ElementRoute::wide || call.random.data != nullptr) {
    return false;
  }
  const auto start = [&](auto kernel) {
    start_kernel(kernel, blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads)), kThreads,
                 stream, call, fast.shift, call.x.data, out.data);
  };
  with_packs_route(call, [&]<class R, ElementRoute kRoute, DType type>() {
    if constexpr (R::mode == Rounding::stochastic) {
      start(cast_stochastic<R, kRoute, type>);
    } else {
      start(cast_packs<R, kRoute, type>);
    }
  });
  return true;
}

/// Queues encode_packs. Returns false if that kernel does not support the call.
bool start_encode_packs(cudaStream_t stream, const ScalesCall& of) {
  const ScaledCall& call = of.call;
  const PackLayout fast(call.layout, call.x);
  if (!fast.fit || !codes_fours(of)) return false;
  with_pack_type(call.x.dtype, [&]<DType type>() {
    start_kernel(encode_packs<NearestByAddition, ElementRoute::multiply, type>,
                 blocks_of(call.n / 16 + 1), kThreads, stream, call, fast.shift, codes_out(of));
  });
  return true;
}

/// Queues decode_scaled_packs. Returns false if that kernel does not support the call.
bool start_decode_packs(cudaStream_t stream, const ScaledCall& call, const std::uint8_t* packed,
                        const Strided& out) {
  const PackLayout fast(call.layout, out);
  if (!fast.fit || call.plan.wide_values || !has_four_codes(call.plan.element.bits, packed)) {
    return false;
  }
  with_codes(call.plan.element, [&]<class R>() {
    with_pack_type(out.dtype, [&]<DType type>() {
      start_kernel(decode_scaled_packs<R, type>, blocks_of(call.n / 16 + 1), kThreads, stream, call,
                   fast.shift, packed, out.data);
    });
  });
  return true;
}

__global__ void __launch_bounds__(kThreads)
    decode_elements(const __grid_constant__ ScaledCall call, const std::uint8_t* packed,
                    const __grid_constant__ Strided out) {
  decode_tiles(call.plan.element.bits, call.n, packed, [&](std::int64_t i, std::uint32_t code) {
    store_element(out, i, decode_element(call, i, code));
  });
}

int form_scales(const Launch& launch, const ScalesCall& of) {
  const int formed = form_cell_scales(launch, of);
  return formed == cudaSuccess ? form_block_scales(launch, of) : formed;
}

}  // namespace

int form_cell_scales(const Launch& launch, const ScalesCall& of) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (of.two_levels && of.given.cells == nullptr && of.given.largest == nullptr) {
    const cudaError_t found =
        largest_of(stream, of.cell_layout, of.call.x, of.call.plan.makes_nan, of.cells.largest);
    if (found != cudaSuccess) return found;
  }
  const std::int64_t cells = of.two_levels ? of.cell_layout.blocks() : 1;
  start_kernel(form_cells, blocks_of(cells), kThreads, stream, of, cells);
  return cudaGetLastError();
}

int form_block_scales(const Launch& launch, const ScalesCall& of) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (const auto status = FastKernel<form_block_scales>::Start(launch, of)) return *status;
  if (start_short_forms(stream, of)) return cudaGetLastError();
  const std::int64_t blocks = of.call.layout.blocks();
  const bool is_given = of.given.largest != nullptr && !of.two_levels;
  Array<float> found(launch, blocks);
  if (found.status() != cudaSuccess) return found.status();
  const float* largest = is_given ? of.given.largest : found.data();
  if (of.given.blocks == nullptr && !is_given) {
    const cudaError_t status =
        largest_of(stream, of.call.layout, of.call.x, of.call.plan.makes_nan, found.data());
    if (status != cudaSuccess) return status;
  }
  start_kernel(form_blocks, blocks_of(blocks), kThreads, stream, of, 1.0, largest, of.call.tables,
               blocks);
  const cudaError_t formed = cudaGetLastError();
  const bool chooses = of.choose != ScaleChoice::none && of.given.blocks == nullptr && !is_given;
  return formed == cudaSuccess && chooses ? choose(launch, of, largest) : formed;
}

int cast_formed(const Launch& launch, const ScalesCall& of) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (const auto status = FastKernel<cast_formed>::Start(launch, of)) return *status;
  if (start_packs(stream, of.call, of.out)) return cudaGetLastError();
  const unsigned blocks = blocks_for((of.call.n + 16 * kThreads - 1) / (16 * kThreads));
  with_mode(of.call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(cast_elements<mode>, blocks, kThreads, stream, of.call, of.out);
  });
  return cudaGetLastError();
}

int decode_formed(const Launch& launch, const ScalesCall& of) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (const auto status = FastKernel<decode_formed>::Start(launch, of)) return *status;
  if (start_decode_packs(stream, of.call, of.packed, of.out)) return cudaGetLastError();
  start_kernel(decode_elements, blocks_for(tiles_of(of.call.n)), kThreads, stream, of.call,
               of.packed, of.out);
  return cudaGetLastError();
}

int cast_scaled(const Launch& launch, const ScalesCall& of) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  if (of.two_levels) {
    const int formed = form_cell_scales(launch, of);
    if (formed != cudaSuccess) return formed;
  }
  if (const auto status = FastKernel<cast_scaled>::Start(launch, of)) return *status;
  if (start_short_casts(static_cast<cudaStream_t>(launch.stream), of)) return cudaGetLastError();
  const int formed = of.two_levels ? form_block_scales(launch, of) : form_scales(launch, of);
  return formed == cudaSuccess ? cast_formed(launch, of) : formed;
}

int cast_both(const Launch& launch, const CastBothCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  if (const auto status = FastKernel<cast_both>::Start(launch, call)) return *status;
  const int status = cast_scaled(launch, call.rows);
  return status == cudaSuccess ? cast_scaled(launch, call.columns) : status;
}

int encode_scaled(const Launch& launch, const ScalesCall& of) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const ScaledCall& call = of.call;
  int formed = form_cell_scales(launch, of);
  if (formed != cudaSuccess) return formed;
  if (const auto status = FastKernel<encode_scaled>::Start(launch, of)) return *status;
  formed = form_block_scales(launch, of);
  if (formed != cudaSuccess) return formed;
  if (start_encode_packs(stream, of)) return cudaGetLastError();
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(encode_elements<mode>, blocks_for(tiles_of(call.n)), kThreads, stream, call,
                 of.packed, of.first_nan);
  });
  return cudaGetLastError();
}

int decode_scaled(const Launch& launch, const ScalesCall& of) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const int formed = form_scales(launch, of);
  return formed == cudaSuccess ? decode_formed(launch, of) : formed;
}

}  // namespace cpd::cuda
