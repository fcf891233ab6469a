// SPDX-License-Identifier: Apache-2.0
//
// Casts a contiguous tensor in blocks of one column, alone or together with blocks of one row.
// Squares of the tensor stay in registers between the search for the largest magnitudes and the
// rounding, so that each value is read once and written once for each direction.
#pragma once

#include "kernels/cuda/scaled_calls.cuh"

namespace cpd::cuda {

constexpr int kPatchSide = 32;  ///< of the part of a square that a warp holds
constexpr int kLaneRows = 8;    ///< of a patch, that a lane holds

/// Returns the side of a square of values, which the threads process together, for blocks of
/// `length` values. A square has the side of one patch (32 x 32 values, held by one warp) or of
/// four patches.
constexpr int square_side(int length) { return length > kPatchSide ? 4 * kPatchSide : kPatchSide; }
/// Returns how many patches (32 x 32 values, held by one warp) lie along one side of a square.
constexpr int square_warps(int length) { return square_side(length) / kPatchSide; }
constexpr int square_patches(int length) { return square_warps(length) * square_warps(length); }
/// Returns the number of threads of a thread block. The thread block holds one square of 16 patches
/// (of 32 x 32 values), or several squares of one patch.
constexpr int square_threads(int length) {
  return square_patches(length) == 1 ? kThreads : square_patches(length) * kWarpSize;
}

/// Returns the number of squares of side x side values into which a tensor is divided. Each block
/// of the tensor must be a range of one column.
CPD_FN std::int64_t squares_of(const BlockLayout& layout, int side) {
  const auto pieces = [&](std::int64_t n) { return (n + side - 1) / side; };
  return layout.planes * pieces(layout.height) * pieces(layout.width);
}

/// Replaces most[i] by the maximum of most[i] over kLanes lanes, whose numbers differ by multiples
/// of kApart. Each lane keeps kCount / kLanes of the maxima, at the front of `most`; the lowest
/// lane keeps the maxima of the lowest indices. All lanes of the warp must call it.
template <int kLanes, int kApart, int kCount>
CPD_DEVICE void share_maxima(std::uint32_t (&most)[kCount], int lane) {
  CPD_IN_REGISTERS for (int lanes = kLanes, kept = kCount / 2; lanes > 1; lanes /= 2, kept /= 2) {
    const int apart = kApart * lanes / 2;
    const bool upper = (lane & apart) != 0;
    CPD_IN_REGISTERS for (int i = 0; i < kept; ++i) {
      const std::uint32_t own = upper ? most[i + kept] : most[i];
      const std::uint32_t others = upper ? most[i] : most[i + kept];
      most[i] = max(own, __shfl_xor_sync(kAllLanes, others, apart));
    }
  }
}

/// Shared memory for the largest magnitudes of a square's columns or rows. of[w][i] is the maximum
/// over the w-th quarter of column or row i. One warp finds this maximum in its patch (32 x 32
/// values).
struct SquareMaxima {
  std::uint32_t of[4][4 * kPatchSide];
};

/// A warp's patch of 32 x 32 values, in blocks of kLength values of a column and of kLength values
/// of a row. Lane l has rows 8 (l / 8) … 8 (l / 8) + 7 of columns 4 (l % 8) … 4 (l % 8) + 3. A lane
/// computes the scales of some of the blocks that contain its values. kPacked: rows of the tensor
/// are aligned to Packs (four neighboring values each).
template <DType type, bool kPacked, int kLength>
struct WarpPatch {
  static constexpr int kSide = square_side(kLength), kWarps = square_warps(kLength);
  /// kDown: the number of lanes that hold the values of one column block in this patch. kAcross:
  /// the number of lanes that hold the values of one row block.
  static constexpr int kDown = kLength < kPatchSide ? kLength / kLaneRows : 4;
  static constexpr int kAcross = kLength < kPatchSide ? kLength / 4 : 8;
  static constexpr int kOwnColumns = 4 / kDown, kOwnRows = kLaneRows / kAcross;

  std::int64_t first;         ///< index of the lane's first value
  std::int64_t column_block;  ///< number of its first column's block
  std::int64_t width;
  int rows, columns;       ///< of the lane's 8 and 4 that the tensor has
  int block_columns;       ///< the same, or 0 where the tensor has no row of the block
  int lane, down, across;  ///< the lane's place in the warp, the warp's in the square
  Pack<type> values[kLaneRows];

  /// Loads the patch (32 x 32 values) of warp `warp` in square number `number`.
  CPD_DEVICE WarpPatch(const BlockLayout& layout, std::uint32_t number, int warp, const void* x)
      : width(layout.width),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        down(warp / kWarps),
        across(warp % kWarps) {
    const auto per_row = static_cast<std::uint32_t>((width + kSide - 1) / kSide);
    const auto per_column = static_cast<std::uint32_t>((layout.height + kSide - 1) / kSide);
    const std::uint32_t band = number / per_row;
    const std::uint32_t plane = band / per_column;
    const std::int64_t row =
        std::int64_t{band - plane * per_column} * kSide + down * kPatchSide + lane / 8 * kLaneRows;
    const std::int64_t column =
        std::int64_t{number - band * per_row} * kSide + across * kPatchSide + lane % 8 * 4;
    first = (plane * layout.height + row) * width + column;
    column_block = (plane * layout.bands() + row / kLength) * width + column;
    rows = at_most_of(layout.height - row, kLaneRows);
    columns = at_most_of(width - column, 4);
    block_columns = row / kLength < layout.bands() ? columns : 0;
    CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
      if (j < rows && columns > 0) values[j] = load(x, first + j * width);
    }
  }

  /// Finds the bit patterns of the largest magnitudes of the column blocks whose scales this lane
  /// computes, and stores them at the front of `most`. All threads of the thread block must call
  /// it.
  CPD_DEVICE void find_columns(bool with_nan, std::uint32_t (&most)[4],
                               SquareMaxima* shared) const {
    CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
      most[k] = 0;
      CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
        most[k] = max(most[k], magnitude_bits(values[j].get(k), with_nan));
      }
    }
    share_maxima<kDown, 8>(most, lane);
    if constexpr (kWarps > 1) most[0] = joined(most[0], down, across, *shared);
  }
  /// Finds the bit patterns of the largest magnitudes of the row blocks whose scales this lane
  /// computes, and stores them at the front of `most`. All threads of the thread block must call
  /// it.
  CPD_DEVICE void find_rows(bool with_nan, std::uint32_t (&most)[kLaneRows],
                            SquareMaxima* shared) const {
    CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
      most[j] = largest_bits(values[j], with_nan);
    }
    share_maxima<kAcross, 1>(most, lane);
    if constexpr (kWarps > 1) most[0] = joined(most[0], across, down, *shared);
  }

  /// Calls visit(o, block) for each block of a column whose scales this lane computes. find_columns
  /// stores the block's maximum in most[o].
  template <class Visit>
  CPD_DEVICE void for_own_columns(Visit visit) const {
    CPD_IN_REGISTERS for (int o = 0; o < kOwnColumns; ++o) {
      const int k = lane / 8 % kDown * kOwnColumns + o;
      if (k < block_columns) visit(o, column_block + k);
    }
  }
  /// Returns the scales of column k, given the scales that each lane has computed. All lanes must
  /// call it.
  [[nodiscard]] CPD_DEVICE ElementScale<float> at_column(
      const ElementScale<float> (&own)[kOwnColumns], int k, bool two_levels) const {
    const int from = lane / (8 * kDown) * 8 * kDown + k / kOwnColumns * 8 + lane % 8;
    return of_lane(own[k % kOwnColumns], from, two_levels);
  }
  [[nodiscard]] CPD_DEVICE ElementScale<float> at_row(const ElementScale<float> (&own)[kOwnRows],
                                                      int j, bool two_levels) const {
    return of_lane(own[j % kOwnRows], lane / kAcross * kAcross + j / kOwnRows, two_levels);
  }

  CPD_DEVICE void store(void* out, int j, Pack<type> pack) const {
    if (j >= rows || columns <= 0) return;
    const std::int64_t at = first + j * width;
    if constexpr (kPacked) {
      static_cast<Pack<type>*>(out)[at / 4] = pack;
    } else {
      CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
        if (k < columns) pack.put(k, out, at + k);
      }
    }
  }

 private:
  CPD_DEVICE static int at_most_of(std::int64_t n, int most) {
    return n < most ? static_cast<int>(n < 0 ? 0 : n) : most;
  }
  CPD_DEVICE Pack<type> load(const void* x, std::int64_t at) const {
    if constexpr (kPacked) {
      return static_cast<const Pack<type>*>(x)[at / 4];
    } else {
      Pack<type> pack;
      CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
        if (k < columns) pack.take(k, x, at + k);
      }
      return pack;
    }
  }
  CPD_DEVICE static ElementScale<float> of_lane(ElementScale<float> own, int from,
                                                bool two_levels) {
    return {__shfl_sync(kAllLanes, own.factor, from), __shfl_sync(kAllLanes, own.scale, from),
            two_levels ? __shfl_sync(kAllLanes, own.outer, from) : 1.0F};
  }
  /// Returns, for each lane, the maximum of `most` over the four warps of a group, whose patches
  /// contain parts of the same blocks. `along` is this warp's number in its group, and `beside` the
  /// group's number in the square. All threads of the thread block must call it.
  CPD_DEVICE std::uint32_t joined(std::uint32_t most, int along, int beside,
                                  SquareMaxima& shared) const {
    const int line = beside * kPatchSide + lane;
    __syncthreads();  // the maxima before have been read
    shared.of[along][line] = most;
    __syncthreads();
    return max(max(shared.of[0][line], shared.of[1][line]),
               max(shared.of[2][line], shared.of[3][line]));
  }
};

/// Calls visit(patch) for each patch (32 x 32 values) that this warp processes: one patch in each
/// square that is assigned to the warp. Every warp of a square makes the same number of calls.
template <class Patch, class Visit>
CPD_DEVICE void for_patches(const ScaledCall& call, Visit visit) {
  constexpr std::uint32_t kPatches = Patch::kWarps * Patch::kWarps;
  const auto count = static_cast<std::uint32_t>(squares_of(call.layout, Patch::kSide));
  const std::uint32_t warps = blockDim.x / kWarpSize;
  const std::uint32_t warp = blockIdx.x * warps + threadIdx.x / kWarpSize;
  const std::uint32_t step = gridDim.x * warps / kPatches;
  for (std::uint32_t at = warp / kPatches; at < count; at += step) {
    visit(Patch(call.layout, at, static_cast<int>(warp % kPatches), call.x.data));
  }
}

/// Casts a lane's values of a patch (32 x 32 values), with any method of division by scales. The
/// first value has index `first`.
template <Rounding mode, DType type, bool kByRows, int kCount>
CPD_CALL void cast_patch_alone(const ScaledCall& call, std::int64_t first, int rows, int columns,
                               LaneScales<kCount> at, void* out) {
  CPD_ROLLED for (int j = 0; j < rows; ++j) {
    CPD_ROLLED for (int k = 0; k < columns; ++k) {
      const std::int64_t i = first + j * call.layout.width + k;
      const float x = value_of<type>(call.x.data, i);
      const float cast = cast_by<mode>(call, x, at.of[kByRows ? j : k], 0);
      set_value_of<type, Stored::nearest>(out, i, cast);
    }
  }
}

/// Casts a patch (32 x 32 values) with the scales of its columns or of its rows, and stores the
/// results.
template <class R, ElementRoute kRoute, bool kByRows, class Patch, int kCount, DType type>
CPD_DEVICE void cast_patch(const Patch& patch, const Pack<type> (&values)[kLaneRows],
                           const ScaledCall& call, const LaneScales<kCount>& at, void* out) {
  if (!at.fit) {
    return cast_patch_alone<R::mode, type, kByRows>(call, patch.first, patch.rows, patch.columns,
                                                    at, out);
  }
  CPD_IN_REGISTERS for (int j = 0; j < kLaneRows; ++j) {
    const auto value = [&](int k) {
      return cast_value<R, kRoute>(call.plan, values[j].get(k), at.of[kByRows ? j : k], 0);
    };
    Pack<type> pack;
    pack.template set<Stored::nearest>(value(0), value(1), value(2), value(3));
    patch.store(out, j, pack);
  }
}

/// Returns the scales of the lane's four columns of a patch (32 x 32 values). Also calls
/// visit(block, scales) for each block whose scales this lane computes. All threads of the thread
/// block must call it.
template <ElementRoute kRoute, class Patch, class Visit>
CPD_DEVICE LaneScales<4> scales_of_columns(const Patch& patch, const ScalesCall& of,
                                           const ShortForm& form, SquareMaxima* shared,
                                           Visit visit) {
  const ScaledCall& call = of.call;
  std::uint32_t most[4];
  patch.find_columns(call.plan.makes_nan, most, shared);
  ElementScale<float> own[Patch::kOwnColumns] = {};
  patch.for_own_columns([&](int o, std::int64_t b) {
    own[o] = scale_of_bits(of, form, b, most[o]);
    visit(b, own[o]);
  });
  LaneScales<4> at;
  CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
    at.set(call, kRoute, k, patch.at_column(own, k, call.plan.two_levels));
  }
  return at;
}
/// Casts a patch (32 x 32 values) in blocks of columns. All threads of the thread block must call
/// it.
template <class R, ElementRoute kRoute, class Patch>
CPD_DEVICE void cast_by_columns(const Patch& patch, const ScalesCall& of, const ShortForm& form,
                                void* out, SquareMaxima* shared) {
  const auto ignore = [](std::int64_t, ElementScale<float>) {};
  const LaneScales<4> at = scales_of_columns<kRoute>(patch, of, form, shared, ignore);
  cast_patch<R, kRoute, false>(patch, patch.values, of.call, at, out);
}

// --- calls ---------------------------------------------------------------------------------------

/// Describes the blocks of a call, each a range of one column. `rows` is the length of a block, or
/// 0 if WarpPatch does not support the call.
struct ColumnBlocks {
  int rows = 0;         ///< of a block; 0: the call has others
  bool packed = false;  ///< the tensor's rows are aligned to Packs

  explicit ColumnBlocks(const ScaledCall& call)
      : packed(is_aligned(call.x.data) && call.layout.width % 4 == 0) {
    const std::int64_t height = call.layout.rows;
    const bool is_plain = call.x.dtype != DType::f64 && is_contiguous(call.x, call.x.dtype);
    const bool is_long = packed && height == 128;
    const bool is_column = call.layout.columns == 1 && (height == 16 || height == 32 || is_long);
    if (is_column && is_plain) rows = static_cast<int>(height);
  }
};

/// Calls run.operator()<type, kLength>() with the type and the block length of the call. Supports
/// blocks of columns in a tensor whose rows are aligned to Packs (four neighboring values each).
template <class Run>
void with_packed_columns(const ScalesCall& of, int length, Run run) {
  with_pack_type(of.call.x.dtype, [&]<DType type>() {
    if (length == 16) return run.template operator()<type, 16>();
    if (length == 32) return run.template operator()<type, 32>();
    run.template operator()<type, 128>();
  });
}
/// Calls run.operator()<type, kPacked, kLength>() with the type and the block length of the call.
/// Supports blocks of columns. `packed`: the tensor's rows are aligned to Packs (four neighboring
/// values each).
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
/// Queues `kernel` with enough thread blocks for all squares of a tensor in blocks of one column.
template <int kLength, class... Parameters, class... Arguments>
void start_squares(void (*kernel)(Parameters...), const Launch& launch, const ScalesCall& of,
                   const Arguments&... more) {
  constexpr int kSquares = square_threads(kLength) / kWarpSize / square_patches(kLength);
  const std::int64_t squares = squares_of(of.call.layout, square_side(kLength));
  start_kernel(kernel, blocks_for((squares + kSquares - 1) / kSquares), square_threads(kLength),
               static_cast<cudaStream_t>(launch.stream), of, ShortForm(of.call.plan), more...);
}

}  // namespace cpd::cuda
