// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats in passes: largest magnitudes of cells and blocks, their scales, elements.
#include <bit>

#include "kernels/cuda/scaled_elements.cuh"
#include "kernels/cuda/scaled_squares.cuh"

namespace cpd::cuda {
namespace {

/// Requirements of kernels that read Packs: contiguous values whose blocks of 2^shift follow one
/// another.
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

/// Raises `largest` to the largest magnitude of n packed values, of which a thread reads four Packs
/// at a time; a block of threads has one atomic operation.
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

/// The largest magnitude of each of a layout's blocks, in stream order.
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

// --- short blocks --------------------------------------------------------------------------------

/// The short blocks that kernels of scaled_blocks.cuh take, of 2^shift neighbors, or those of
/// scaled_squares.cuh, of `rows` values of a column.
struct ShortBlocks {
  int shift = 0;
  int rows = 0;
  bool packed = false;  ///< columns' rows begin where Packs do

  explicit ShortBlocks(const ScaledCall& call) {
    const PackLayout packs(call.layout, call.x);
    if (packs.fit && packs.shift >= 4 && packs.shift <= 7 && call.n % 4 == 0) shift = packs.shift;
    const std::int64_t height = call.layout.rows;
    const bool is_plain = call.x.dtype != DType::f64 && is_contiguous(call.x, call.x.dtype);
    packed = is_aligned(call.x.data) && call.layout.width % 4 == 0;
    const bool is_long = packed && height == 128;
    const bool is_column = call.layout.columns == 1 && (height == 16 || height == 32 || is_long);
    if (is_column && is_plain) rows = static_cast<int>(height);
  }
};

/// Returns whether the scales of the call's blocks are formed from their largest magnitudes alone.
bool forms_by_largest(const ScalesCall& of) {
  const bool is_given = of.given.largest != nullptr && !of.two_levels;
  return of.given.blocks == nullptr && !is_given && of.choose == ScaleChoice::none;
}

/// Queues a kernel for blocks of neighbors: run.operator()<type, kPacks>(thread blocks).
template <class Run>
void with_neighbours(const ScalesCall& of, const ShortBlocks& blocks, Run run) {
  const std::int64_t threads = (of.call.n / 4 + 3) / 4;
  with_pack_type(of.call.x.dtype, [&]<DType type>() {
    if (blocks.shift == 4) return run.template operator()<type, packs_of(4)>(blocks_of(threads));
    run.template operator()<type, packs_of(5)>(blocks_of(threads / 2 + 1));
  });
}
/// Calls run.operator()<type, kLength>() for blocks of columns, whose rows begin where Packs do.
template <class Run>
void with_packed_columns(const ScalesCall& of, int length, Run run) {
  with_pack_type(of.call.x.dtype, [&]<DType type>() {
    if (length == 16) return run.template operator()<type, 16>();
    if (length == 32) return run.template operator()<type, 32>();
    run.template operator()<type, 128>();
  });
}
/// Calls run.operator()<type, kPacked, kLength>() for blocks of columns.
template <class Run>
void with_columns(const ScalesCall& of, int length, bool packed, Run run) {
  if (packed) {
    return with_packed_columns(of, length, [&]<DType type, int kLength>() {
      run.template operator()<type, true, kLength>();
    });
  }
  with_pack_type(of.call.x.dtype, [&]<DType type>() {
    if (length == 16) return run.template operator()<type, false, 16>();
    run.template operator()<type, false, 32>();
  });
}
/// Queues a kernel for the squares of such a layout.
template <int kLength, class... Parameters, class... Arguments>
void start_squares(void (*kernel)(Parameters...), cudaStream_t stream, const ScalesCall& of,
                   const Arguments&... more) {
  constexpr int kSquares = square_threads(kLength) / kWarpSize / square_patches(kLength);
  const std::int64_t squares = squares_of(of.call.layout, square_side(kLength));
  start_kernel(kernel, blocks_for((squares + kSquares - 1) / kSquares), square_threads(kLength),
               stream, of, more...);
}

/// Queues the forming of short blocks' scales; false where there are none.
bool start_short_forms(cudaStream_t stream, const ScalesCall& of) {
  const ShortBlocks blocks(of.call);
  const ShortForm form(of.call.plan);
  if (!forms_by_largest(of) || (blocks.shift == 0 && blocks.rows == 0)) return false;
  if (blocks.shift != 0) {
    with_neighbours(of, blocks, [&]<DType type, int kPacks>(unsigned count) {
      start_kernel(form_short_blocks<type, kPacks>, count, kThreads, stream, of, form,
                   blocks.shift);
    });
    return true;
  }
  with_columns(of, blocks.rows, blocks.packed, [&]<DType type, bool kPacked, int kLength>() {
    start_squares<kLength>(form_columns<type, kPacked, kLength>, stream, of, form);
  });
  return true;
}

/// The elements that kernels take in one pass or four codes at a time: rounded to nearest-even by
/// an addition, after a product.
using NearestByAddition = Rule<Rounding::nearest_even, Form::addition>;
bool is_nearest_by_addition(const ScaledCall& call) {
  const RoundPlan& element = call.plan.element;
  return element.mode == NearestByAddition::mode && element.form == Form::addition &&
         call.route == ElementRoute::multiply && call.random.data == nullptr;
}

/// Queues the forming of short blocks' scales with the cast to nearest-even of their elements;
/// false where that takes two passes.
bool start_short_casts(cudaStream_t stream, const ScalesCall& of, const Strided& out) {
  const ScaledCall& call = of.call;
  const ShortBlocks blocks(call);
  const ShortForm form(call.plan);
  const bool fits = is_nearest_by_addition(call) && forms_by_largest(of) &&
                    call.x.dtype == out.dtype && is_contiguous(out, out.dtype);
  if (!fits) return false;
  if (blocks.shift != 0 && has_packs(out)) {
    with_neighbours(of, blocks, [&]<DType type, int kPacks>(unsigned count) {
      start_kernel(cast_short_blocks<NearestByAddition, ElementRoute::multiply, type, kPacks>,
                   count, kThreads, stream, of, form, blocks.shift, out.data);
    });
    return true;
  }
  const bool packed = blocks.packed && is_aligned(out.data);
  if (blocks.rows == 0 || (blocks.rows == 128 && !packed)) return false;
  with_columns(of, blocks.rows, packed, [&]<DType type, bool kPacked, int kLength>() {
    start_squares<kLength>(
        cast_columns<NearestByAddition, ElementRoute::multiply, type, kPacked, kLength>, stream, of,
        form, out.data);
  });
  return true;
}

/// Returns whether `columns` has blocks of as many values of a column as `rows` has of the same
/// tensor's rows.
bool is_turned(const BlockLayout& rows, const BlockLayout& columns) {
  const bool is_merged = rows.planes * rows.height * rows.middle == 1;
  const bool is_along = is_merged ? columns.width % rows.columns == 0 : rows.width == columns.width;
  return rows.rows == 1 && rows.columns == columns.rows && is_along;
}

/// Returns whether one kernel casts in blocks of columns and in those of as many values of a row.
bool takes_both(const ScalesCall& rows, const Strided& by_rows, const ScalesCall& columns,
                const Strided& by_columns) {
  const ScaledCall& call = columns.call;
  const ShortBlocks blocks(call);
  const auto is_like_x = [&](const Strided& t) { return t.dtype == call.x.dtype && has_packs(t); };
  return blocks.rows != 0 && blocks.packed && is_turned(rows.call.layout, call.layout) &&
         is_nearest_by_addition(call) && forms_by_largest(columns) && call.cells.extent == 0 &&
         is_like_x(by_rows) && is_like_x(by_columns);
}
void start_both(cudaStream_t stream, const ScalesCall& columns, const Strided& by_rows,
                const Strided& by_columns) {
  const ShortForm form(columns.call.plan);
  with_packed_columns(columns, ShortBlocks(columns.call).rows, [&]<DType type, int kLength>() {
    start_squares<kLength>(cast_squares<NearestByAddition, ElementRoute::multiply, type, kLength>,
                           stream, columns, form, by_columns.data, by_rows.data);
  });
}

// --- elements ------------------------------------------------------------------------------------

/// Returns whether kernels may take the scales of the call's blocks of columns for Packs of a
/// tensor.
bool has_four_scales(const ScaledCall& call, const Strided& t) {
  return call.layout.columns == 1 && call.layout.width % 4 == 0 && call.cells.extent == 0 &&
         call.n <= 0xFFFFFFFF && has_packs(t) && is_aligned(call.tables.factor) &&
         is_aligned(call.tables.scale);
}

/// Queues a kernel that casts Packs, where the tensors and the route allow it; false where they do
/// not.
bool start_packs(cudaStream_t stream, const ScaledCall& call, const Strided& out) {
  const PackLayout fast(call.layout, call.x);
  const bool columns =
      !fast.fit && call.plan.element.mode == Rounding::stochastic && has_four_scales(call, call.x);
  if ((!fast.fit && !columns) || !has_packs(out) || call.x.dtype != out.dtype ||
      call.route == ElementRoute::wide || call.random.data != nullptr) {
    return false;
  }
  const auto start_one = [&](auto kernel) {
    start_kernel(kernel, blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads)), kThreads,
                 stream, call, fast.shift, call.x.data, out.data);
  };
  const auto start = [&]<class R, ElementRoute kRoute, DType type>() {
    if constexpr (R::mode != Rounding::stochastic) {
      start_one(cast_packs<R, kRoute, type>);
    } else if (columns) {
      start_one(cast_stochastic<R, kRoute, type, true>);
    } else {
      start_one(cast_stochastic<R, kRoute, type, false>);
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

/// Returns whether kernels encode the call four values at a time.
bool codes_fours(const ScaledCall& call, const CodesOut& to) {
  return is_nearest_by_addition(call) && has_four_codes(call.plan.element.bits, to.packed);
}

/// Queues encode_packs where it takes the call; false where it does not.
bool start_encode_packs(cudaStream_t stream, const ScaledCall& call, const CodesOut& to) {
  const PackLayout fast(call.layout, call.x);
  if (!fast.fit || !codes_fours(call, to)) return false;
  with_pack_type(call.x.dtype, [&]<DType type>() {
    start_kernel(encode_packs<NearestByAddition, ElementRoute::multiply, type>,
                 blocks_of(call.n / 16 + 1), kThreads, stream, call, fast.shift, to);
  });
  return true;
}

/// Queues the forming of short blocks' scales with the codes of their elements; false where that
/// takes two passes.
bool start_short_codes(cudaStream_t stream, const ScalesCall& of, const CodesOut& to) {
  const ShortBlocks blocks(of.call);
  const ShortForm form(of.call.plan);
  if (!forms_by_largest(of) || !codes_fours(of.call, to)) return false;
  if (blocks.shift != 0) {
    with_neighbours(of, blocks, [&]<DType type, int kPacks>(unsigned count) {
      start_kernel(encode_short_blocks<NearestByAddition, ElementRoute::multiply, type, kPacks>,
                   count, kThreads, stream, of, form, blocks.shift, to);
    });
    return true;
  }
  if (blocks.rows == 0 || !blocks.packed) return false;
  with_packed_columns(of, blocks.rows, [&]<DType type, int kLength>() {
    start_squares<kLength>(encode_columns<NearestByAddition, ElementRoute::multiply, type, kLength>,
                           stream, of, form, to);
  });
  return true;
}

/// Queues decode_packs where it takes the call; false where it does not.
bool start_decode_packs(cudaStream_t stream, const ScaledCall& call, const std::uint8_t* packed,
                        const Strided& out) {
  const PackLayout fast(call.layout, out);
  const bool columns = !fast.fit && has_four_scales(call, out);
  if ((!fast.fit && !columns) || call.plan.wide_values ||
      !has_four_codes(call.plan.element.bits, packed)) {
    return false;
  }
  const auto start = [&](auto kernel) {
    start_kernel(kernel, blocks_of(call.n / 16 + 1), kThreads, stream, call, fast.shift, packed,
                 out.data);
  };
  with_codes(call.plan.element, [&]<class R>() {
    with_pack_type(out.dtype, [&]<DType type>() {
      columns ? start(decode_packs<R, type, true>) : start(decode_packs<R, type, false>);
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

/// Forms the second level's scales.
cudaError_t form_all_cells(cudaStream_t stream, const ScalesCall& of) {
  if (of.two_levels && of.given.cells == nullptr && of.given.largest == nullptr) {
    const cudaError_t found =
        largest_of(stream, of.cell_layout, of.call.x, of.call.plan.makes_nan, of.cells.largest);
    if (found != cudaSuccess) return found;
  }
  const std::int64_t cells = of.two_levels ? of.cell_layout.blocks() : 1;
  start_kernel(form_cells, blocks_of(cells), kThreads, stream, of, cells);
  return cudaGetLastError();
}

/// Forms the scales of blocks, after those of cells.
cudaError_t form_all_blocks(const Launch& launch, const ScalesCall& of) {
  const auto stream = static_cast<cudaStream_t>(launch.stream);
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

cudaError_t form_scales(const Launch& launch, const ScalesCall& of) {
  const cudaError_t formed = form_all_cells(static_cast<cudaStream_t>(launch.stream), of);
  return formed == cudaSuccess ? form_all_blocks(launch, of) : formed;
}

}  // namespace

int cast_scaled(const Launch& launch, const ScalesCall& of) {
  const Strided& out = of.out;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (of.two_levels) {
    const cudaError_t formed = form_all_cells(stream, of);
    if (formed != cudaSuccess) return formed;
  }
  if (start_short_casts(stream, of, out)) return cudaGetLastError();
  const cudaError_t formed = of.two_levels ? form_all_blocks(launch, of) : form_scales(launch, of);
  if (formed != cudaSuccess) return formed;
  if (start_packs(stream, of.call, out)) return cudaGetLastError();
  const unsigned blocks = blocks_for((of.call.n + 16 * kThreads - 1) / (16 * kThreads));
  with_mode(of.call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(cast_elements<mode>, blocks, kThreads, stream, of.call, out);
  });
  return cudaGetLastError();
}

int cast_both(const Launch& launch, const CastBothCall& call) {
  const auto& [rows, columns] = call;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (takes_both(rows, rows.out, columns, columns.out)) {
    if (columns.two_levels) {
      const cudaError_t formed = form_all_cells(stream, columns);
      if (formed != cudaSuccess) return formed;
    }
    start_both(stream, columns, rows.out, columns.out);
    return cudaGetLastError();
  }
  const int status = cast_scaled(launch, rows);
  return status == cudaSuccess ? cast_scaled(launch, columns) : status;
}

int encode_scaled(const Launch& launch, const ScalesCall& of) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const ScaledCall& call = of.call;
  const CodesOut to{of.packed, of.first_nan};
  cudaError_t formed = form_all_cells(stream, of);
  if (formed != cudaSuccess) return formed;
  if (start_short_codes(stream, of, to)) return cudaGetLastError();
  formed = form_all_blocks(launch, of);
  if (formed != cudaSuccess) return formed;
  if (start_encode_packs(stream, call, to)) return cudaGetLastError();
  with_mode(call.plan.element.mode, [&]<Rounding mode>() {
    start_kernel(encode_elements<mode>, blocks_for(tiles_of(call.n)), kThreads, stream, call,
                 of.packed, of.first_nan);
  });
  return cudaGetLastError();
}

int decode_scaled(const Launch& launch, const ScalesCall& of) {
  const std::uint8_t* const packed = of.packed;
  const Strided& out = of.out;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const cudaError_t formed = form_scales(launch, of);
  if (formed != cudaSuccess) return formed;
  if (start_decode_packs(stream, of.call, packed, out)) return cudaGetLastError();
  start_kernel(decode_elements, blocks_for(tiles_of(of.call.n)), kThreads, stream, of.call, packed,
               out);
  return cudaGetLastError();
}

}  // namespace cpd::cuda
