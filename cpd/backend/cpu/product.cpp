// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on the CPU. The sums are divided into blocks, and each block is one task of a
// thread.
#include <algorithm>
#include <utility>
#include <vector>

#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/image_operand.h"
#include "cpd/backend/cpu/product_grid.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/sums/fixed_number.h"
#include "cpd/numeric/sums/order.h"

namespace cpd {
namespace {

constexpr std::int64_t kMostLines = 512;  ///< rows, and columns, of a task's block of sums
constexpr std::int64_t kMostDepth = 128;  ///< values of k packed at once
constexpr std::int64_t kBand = 128;       ///< rows between two checks for an interrupt
/// The maximum number of products that one thread computes alone, in sequential and chunked sums
/// without stochastic rounding. Products in other sums take about four times as long (SerialSums).
constexpr std::int64_t kSerialWork = std::int64_t{1} << 18;

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// --- memory --------------------------------------------------------------------------------------

/// Returns the rows x columns elements that begin at (row, column) of the batch's matrix number
/// `batch`.
TensorView Part(const MatrixProduct& product, const ProductOperand& x, std::int64_t batch,
                std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  const std::int64_t offset =
      product.offset_of(x, batch) + row * x.row_stride + column * x.column_stride;
  TensorView view;
  view.data =
      static_cast<std::uint8_t*>(x.data) + offset * static_cast<std::int64_t>(SizeOf(x.dtype));
  view.dtype = x.dtype;
  view.rank = 2;
  view.shape = {rows, columns};
  view.stride = {x.row_stride, x.column_stride};
  return view;
}

/// A thread's buffers, reused from call to call: the system takes time to clear new memory.
struct Buffers {
  std::vector<float> a, b, state, outer, total;
  std::vector<PanelRange> a_ranges, b_ranges;
  std::vector<std::int32_t> a_logs, b_logs;
  ImageBuffer a_image, b_image;
};
thread_local Buffers g_buffers;
constexpr std::size_t kMostKept = std::size_t{4}
                                  << 20;  ///< maximum floats of a buffer that is kept

/// An operand in packed panels (groups of rows of a or columns of b, GemmBlock), and the bounds of
/// each panel's values.
class Panels {
 public:
  Panels(std::int64_t lines, std::int64_t depth, int width, std::vector<float>& packed,
         std::vector<PanelRange>& ranges, std::vector<std::int32_t>* logs)
      : width_(width),
        packed_(Sized(packed, round_up(lines, width) * depth)),
        ranges_(Sized(ranges,
                      round_up(lines, width) / width * ((depth + kRangeGroup - 1) / kRangeGroup))),
        logs_(logs == nullptr ? nullptr : Sized(*logs, round_up(lines, width) * depth)) {}

  /// Packs the operand x. Its rows (or columns, if `across` is set) run along k.
  void Pack(const TensorView& x, bool across, int least_bits_within) {
    const int line = across ? 1 : 0;
    const std::int64_t lines = x.shape[line];
    const std::int64_t count = x.shape[1 - line];
    if (x.dtype == DType::f32) {
      return Kernels().pack(lines, count, static_cast<const float*>(x.data), x.stride[line],
                            x.stride[1 - line], width_, least_bits_within, packed_, ranges_, logs_);
    }
    const float* values = Widen(x);
    Kernels().pack(lines, count, values, across ? 1 : count, across ? lines : 1, width_,
                   least_bits_within, packed_, ranges_, logs_);
  }
  /// Packs x for a matrix unit: along k, values are in the order in which the unit adds
  /// (place_in_order). After the last of the `count` values, +0 fills up to `padded` values.
  void PackInOrder(const TensorView& x, bool across, const BlockFmaPlan& unit,
                   std::int64_t padded) {
    const int line = across ? 1 : 0;
    const std::int64_t lines = x.shape[line];
    const std::int64_t count = x.shape[1 - line];
    const float* values = Widen(x);
    ordered_.assign(static_cast<std::size_t>(lines * padded), 0.0F);
    for (std::int64_t k = 0; k < count; ++k) {
      float* to = ordered_.data() + place_in_order(unit, k) * lines;
      for (std::int64_t i = 0; i < lines; ++i) {
        to[i] = values[across ? k * lines + i : i * count + k];
      }
    }
    Kernels().pack(lines, padded, ordered_.data(), 1, lines, width_, 0, packed_, ranges_, nullptr);
  }
  [[nodiscard]] const float* packed() const { return packed_; }
  [[nodiscard]] const PanelRange* ranges() const { return ranges_; }
  [[nodiscard]] const std::int32_t* logs() const { return logs_; }

 private:
  /// Returns a tensor's elements in binary32, row by row.
  const float* Widen(const TensorView& x) {
    const std::int64_t n = x.size();
    wide_.resize(static_cast<std::size_t>(n));
    Reader<float> reader(x);
    for (std::int64_t i = 0; i < n; i += kStage) {
      const std::int64_t count = std::min(kStage, n - i);
      std::copy_n(reader.Read(i, count), count, wide_.data() + i);
    }
    return wide_.data();
  }

  int width_;
  float* packed_;
  PanelRange* ranges_;
  std::int32_t* logs_;
  std::vector<float> wide_, ordered_;
};

/// Adds term number k to each of n sums. `index` is the element number of the first sum; `given`
/// has the caller's random integers. Calls the kernel once for each range of element numbers that
/// agree in bits 32 and above, as the kernel requires.
void Fold(const FoldPlan& plan, std::int64_t k, std::uint64_t index, std::int64_t n,
          const float* terms, float* sum, GivenDraws given) {
  while (n > 0) {
    const std::uint64_t left = (std::uint64_t{1} << 32) - (index & 0xFFFFFFFFU);
    const auto count = static_cast<std::int64_t>(std::min<std::uint64_t>(left, n));
    Kernels().fold({DType::f32, k == 0, &plan, k, static_cast<std::int64_t>(index), count, 1,
                    &terms, sum, nullptr, given});
    index += left;
    given = given.from(count);
    n -= count;
    terms += count;
    sum += count;
  }
}

/// Adds c[i] to integer sum number i of n. Word q of sum i is at state[q * plane + i].
void StartIntegers(const FixedPlan& plan, std::int64_t n, const float* c, float* state,
                   std::int64_t plane) {
  const FixedPoint& point = plan.point;
  for (std::int64_t i = 0; i < n; ++i) {
    const FixedTerm term = fixed_term(c[i], point.fraction, point.rounding);
    if (!term.finite) {
      state[plan.words * plane + i] = 1.0F;
      continue;
    }
    FixedNumber sum(plan, state + i, plane);
    sum.add(term, plan.saturates);
    sum.store(state + i, plane);
  }
}

/// Returns the number of indices k packed at once: whole groups or blocks for a matrix unit.
std::int64_t DepthStep(const AccumulatorPlan& plan, std::int64_t depth) {
  if (plan.scheme != Scheme::block_fma) return std::min(depth, kMostDepth);
  if (plan.unit.group == 0) {
    return std::min<std::int64_t>(depth, kMostDepth / plan.unit.block * plan.unit.block);
  }
  return round_up(std::min<std::int64_t>(depth, kMostDepth / plan.unit.group * plan.unit.group),
                  plan.unit.group);
}

// --- one task ------------------------------------------------------------------------------------

/// A task: a block of sums in one matrix of the batch.
struct Task {
  std::int64_t batch, row, rows, column, columns;
};

/// Computes tasks (blocks of a product's sums) in one thread, with that thread's buffers.
class Worker {
 public:
  /// `scales`: the operands' scales, or null. A task has at most `rows` x `columns` sums.
  Worker(const GemmCall& call, const ProductScales* scales, std::int64_t rows, std::int64_t columns)
      : buffers_(std::exchange(g_buffers, {})),
        product_(call.product),
        plan_(call.plan),
        sum_(plan_.sum),
        unit_(plan_.unit),
        given_(call.random),
        scales_(scales),
        images_(call.images == nullptr ? ProductImages{} : *call.images),
        state_columns_(round_up(columns, Kernels().gemm_columns)),
        plane_(round_up(rows, Kernels().gemm_rows) * state_columns_),
        depth_(DepthStep(plan_, product_.depth)),
        padded_rows_(plane_ / state_columns_),
        a_(rows, depth_, Kernels().gemm_rows, buffers_.a, buffers_.a_ranges,
           LogsFor(plan_, buffers_.a_logs)),
        b_(columns, depth_, Kernels().gemm_columns, buffers_.b, buffers_.b_ranges,
           LogsFor(plan_, buffers_.b_logs)),
        state_(Sized(buffers_.state, plane_ * plan_.planes)),
        outer_(Sized(buffers_.outer, plan_.chunk > 0 ? plane_ : 0)),
        row_(static_cast<std::size_t>(state_columns_)) {
    if (scales_ == nullptr) return;
    total_ = Sized(buffers_.total, plane_);
    const std::int64_t groups = unit_.takes_scales ? depth_ / unit_.scale_block + 1 : 0;
    a_lines_.resize(static_cast<std::size_t>(padded_rows_));
    b_lines_.resize(static_cast<std::size_t>(state_columns_));
    a_groups_.resize(static_cast<std::size_t>(padded_rows_ * groups));
    b_groups_.resize(static_cast<std::size_t>(state_columns_ * groups));
  }
  ~Worker() {
    if (buffers_.state.size() > kMostKept) buffers_.state = {};
    if (buffers_.outer.size() > kMostKept) buffers_.outer = {};
    if (buffers_.total.size() > kMostKept) buffers_.total = {};
    g_buffers = std::move(buffers_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Run(const Task& task) {
    task_ = task;
    std::fill_n(state_, plane_ * plan_.planes, 0.0F);
    if (plan_.chunk > 0) std::fill_n(outer_, plane_, 0.0F);
    if (scales_ == nullptr) {
      AddAll(0, product_.depth);
      Store(Sums());
    } else {
      AddScaled();
      Store(state_);
    }
  }

 private:
  static std::vector<std::int32_t>* LogsFor(const AccumulatorPlan& plan,
                                            std::vector<std::int32_t>& logs) {
    return plan.scheme != Scheme::block_fma && plan.sum.fast.takes_logs ? &logs : nullptr;
  }
  [[nodiscard]] std::uint64_t IndexOf(std::int64_t row) const {
    return static_cast<std::uint64_t>(
        product_.first_element +
        ((task_.batch * product_.rows + task_.row + row) * product_.columns) + task_.column);
  }

  /// Returns the memory of the whole sums: `outer_`, to which chunks' sums are added, or `state_`.
  [[nodiscard]] float* Sums() const { return plan_.chunk > 0 ? outer_ : state_; }

  [[nodiscard]] GivenDraws GivenAt(std::uint64_t index) const {
    return given_.from(static_cast<std::int64_t>(index));
  }

  /// Sets the sums to their initial value, which is c, rounded, or +0 without c.
  void Start(float* sums) {
    const bool given = product_.c.data != nullptr;
    const bool is_fixed = plan_.scheme == Scheme::fixed;
    if (!given && (is_fixed || plan_.first.round.has_zero)) return;  // the buffers hold +0
    const TensorView c = given ? Part(product_, product_.c, task_.batch, task_.row, task_.rows,
                                      task_.column, task_.columns)
                               : TensorView{};
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      for (std::int64_t j = 0; j < task_.columns; j += kStage) {
        const std::int64_t n = std::min(kStage, task_.columns - j);
        const TensorView part = given ? RowOf(c, i, j, n) : TensorView{};
        Reader<float> reader(part);
        const float* terms = given ? reader.Read(0, n) : row_.data() + j;
        float* to = sums + i * state_columns_ + j;
        if (is_fixed) {
          StartIntegers(plan_.fixed, n, terms, to, plane_);
          continue;
        }
        const std::uint64_t index = IndexOf(i) + static_cast<std::uint64_t>(j);
        Fold(plan_.first, 0, index, n, terms, to, GivenAt(index));
      }
    }
  }

  static TensorView RowOf(const TensorView& x, std::int64_t row, std::int64_t column,
                          std::int64_t n) {
    TensorView part = x;
    part.data = static_cast<std::uint8_t*>(x.data) + (row * x.stride[0] + column * x.stride[1]) *
                                                         static_cast<std::int64_t>(SizeOf(x.dtype));
    part.rank = 1;
    part.shape[0] = n;
    part.stride[0] = x.stride[1];
    return part;
  }

  /// Sets the sums of the block to their initial value, then adds the products k = begin … end - 1.
  /// Chunks and each sum's random integers are counted from k = begin.
  void AddAll(std::int64_t begin, std::int64_t end) {
    origin_ = begin;
    Start(Sums());
    plan_.chunk > 0 ? AddChunks(begin, end) : AddProducts(begin, end);
  }

  [[nodiscard]] std::int64_t EndOfChunk(std::int64_t k, std::int64_t number,
                                        std::int64_t end) const {
    if (images_.chunk_ends.empty()) return std::min(end, k + plan_.chunk);
    return images_.chunk_ends[static_cast<std::size_t>(number)];
  }

  /// Sums one chunk after the other, each from +0, and adds each chunk's sum to the outer sum.
  void AddChunks(std::int64_t begin, std::int64_t end) {
    const std::uint64_t first_draw = sum_.first_draw;
    std::int64_t stop = 0;
    for (std::int64_t k = begin, number = 0; k < end; k = stop, ++number) {
      stop = EndOfChunk(k, number, end);
      if (stop == k) continue;
      sum_.first_draw = first_draw + static_cast<std::uint64_t>(number);
      std::fill_n(state_, plane_, 0.0F);
      AddProducts(k, stop);
      const std::int64_t draw =
          static_cast<std::int64_t>(sum_.first_draw) +
          draws_before(product_order(sum_.scheme, sum_.exact_products), stop - begin);
      for (std::int64_t i = 0; i < task_.rows; ++i) {
        Fold(plan_.outer, draw, IndexOf(i), task_.columns, state_ + i * state_columns_,
             outer_ + i * state_columns_, GivenAt(IndexOf(i)));
      }
    }
    sum_.first_draw = first_draw;
  }

  /// Adds the products of k = begin … end - 1 to the sums. If the kernel also rounds finished sums
  /// into the accumulator's format, it is called even without products.
  void AddProducts(std::int64_t begin, std::int64_t end) {
    GemmBlock block;
    block.rows = task_.rows;
    block.columns = task_.columns;
    block.a = a_.packed();
    block.b = b_.packed();
    block.a_range = a_.ranges();
    block.b_range = b_.ranges();
    block.a_logs = a_.logs();
    block.b_logs = b_.logs();
    block.state = state_;
    block.plane = plane_;
    block.state_columns = state_columns_;
    block.index = IndexOf(0);
    block.index_row = static_cast<std::uint64_t>(product_.columns);
    block.given = GivenAt(block.index);
    if (begin == end && plan_.ends_in_kernel()) {
      block.last = true;
      return Add(block);
    }
    for (std::int64_t k = begin; k < end; k += depth_) {
      block.first_k = k - origin_;
      block.count = std::min(depth_, end - k);
      block.last = k + block.count == end;
      PackOperands(k, block);
      if (scales_ != nullptr && unit_.takes_scales) SpreadGroups(k, block);
      AddBlock(block);
    }
  }

  [[nodiscard]] TensorView PartOf(const ProductOperand& x, const ImageOperand* image,
                                  std::int64_t row, std::int64_t rows, std::int64_t column,
                                  std::int64_t columns, ImageBuffer& buffer) const {
    if (image == nullptr) return Part(product_, x, task_.batch, row, rows, column, columns);
    return image->Read(task_.batch, row, rows, column, columns, buffer);
  }

  /// Packs block.count indices k of both operands, from `k` on: whole groups for a matrix unit.
  void PackOperands(std::int64_t k, GemmBlock& block) {
    const TensorView a =
        PartOf(product_.a, images_.a, task_.row, task_.rows, k, block.count, buffers_.a_image);
    const TensorView b = PartOf(product_.b, images_.b, k, block.count, task_.column, task_.columns,
                                buffers_.b_image);
    if (plan_.scheme == Scheme::block_fma && unit_.group > 0) {
      block.count = round_up(block.count, unit_.group);
      a_.PackInOrder(a, false, unit_, block.count);
      b_.PackInOrder(b, true, unit_, block.count);
      return;
    }
    const int bits = plan_.scheme == Scheme::fixed ? 24 : sum_.fast.least_bits_within;
    a_.Pack(a, false, bits);
    b_.Pack(b, true, bits);
  }

  /// Adds the products of the packed operands to the block's sums, kBand rows of sums at a time.
  void AddBlock(const GemmBlock& block) {
    const std::int64_t groups = (block.count + kRangeGroup - 1) / kRangeGroup;
    for (std::int64_t row = 0; row < block.rows; row += kBand) {
      CheckInterrupt();
      GemmBlock band = block;
      band.rows = std::min(kBand, block.rows - row);
      band.a += row * block.count;
      band.a_range += row / Kernels().gemm_rows * groups;
      if (band.a_logs != nullptr) band.a_logs += row * block.count;
      band.state += row * block.state_columns;
      if (band.a_scale != nullptr) band.a_scale += row;
      band.index += static_cast<std::uint64_t>(row) * block.index_row;
      Add(band);
      if (scales_ != nullptr && block.last && plan_.chunk == 0) AddToTotal(row, band.rows);
    }
  }

  void Add(const GemmBlock& block) {
    switch (plan_.scheme) {
      case Scheme::block_fma:
        return Kernels().block_fma(unit_, block);
      case Scheme::fixed:
        return Kernels().fixed(plan_.fixed, block);
      default:
        return Kernels().gemm(sum_, block);
    }
  }

  // --- scales ---

  /// Writes the results of scaled operands to `state_`: c plus the scaled sums of all blocks of k.
  void AddScaled() {
    const ProductScales& s = *scales_;
    std::fill_n(total_, plane_, s.start);
    for (std::int64_t block = 0; block < s.sums; ++block) {
      const std::int64_t k = block * s.block;
      const auto draws = static_cast<std::uint64_t>(block * s.draws);
      sum_.first_draw = plan_.sum.first_draw + draws;
      unit_.first_draw = plan_.unit.first_draw + draws;
      SpreadLines(s.of_sums, k);
      AddAll(k, std::min(product_.depth, k + s.block));
      if (plan_.chunk > 0 || product_.depth == 0) AddToTotal(0, task_.rows);
    }
    SpreadLines(s.factors, 0);
    StartResults();
    Kernels().add_scaled_sums(task_.rows, PaddedColumns(), state_columns_, a_lines_.data(),
                              b_lines_.data(), total_, state_);
  }

  /// Writes to `to` the scales at index k of n rows of a (or columns of b), from `first` on.
  void Spread(const GridOfScales& grid, std::int64_t first, std::int64_t n, std::int64_t k,
              float* to) const {
    if (grid.at.data == nullptr) {
      std::fill_n(to, n, 1.0F);
      return;
    }
    const TensorView scales = Part(product_, grid.at, task_.batch, 0, 1, k / grid.block, 1);
    const auto* from = static_cast<const float*>(scales.data);
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[(first + i) / grid.lines * scales.stride[0]];
  }
  void SpreadLines(const GridsOfScales& grids, std::int64_t k) {
    Spread(grids.a, task_.row, task_.rows, k, a_lines_.data());
    Spread(grids.b, task_.column, task_.columns, k, b_lines_.data());
  }
  /// Copies the scales of indices k … k + block.count - 1 by which a matrix unit multiplies.
  void SpreadGroups(std::int64_t k, GemmBlock& block) {
    block.a_scale = a_groups_.data();
    block.b_scale = b_groups_.data();
    block.scale_rows = padded_rows_;
    for (std::int64_t group = 0; group * unit_.scale_block < block.count; ++group) {
      const std::int64_t at = k + group * unit_.scale_block;
      Spread(scales_->in_unit.a, task_.row, task_.rows, at,
             a_groups_.data() + group * padded_rows_);
      Spread(scales_->in_unit.b, task_.column, task_.columns, at,
             b_groups_.data() + group * state_columns_);
    }
  }

  /// Adds the scaled sums of `rows` rows, from `row` on, to the total. Resets these sums.
  void AddToTotal(std::int64_t row, std::int64_t rows) {
    const std::int64_t at = row * state_columns_;
    Kernels().add_scaled_sums(round_up(rows, Kernels().gemm_rows), PaddedColumns(), state_columns_,
                              a_lines_.data() + row, b_lines_.data(), Sums() + at, total_ + at);
    if (plan_.scheme != Scheme::kahan && plan_.scheme != Scheme::fixed) return;
    for (int q = 1; q < plan_.planes; ++q) {
      std::fill_n(state_ + q * plane_ + at, rows * state_columns_, 0.0F);
    }
  }
  [[nodiscard]] std::int64_t PaddedColumns() const {
    return round_up(task_.columns, Kernels().gemm_columns);
  }

  /// Sets the results to their initial value, which is c. Without c it is -0, since -0 + x = x for
  /// every x.
  void StartResults() {
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      float* to = state_ + i * state_columns_;
      if (scales_->c.data == nullptr) {
        std::fill_n(to, task_.columns, -0.0F);
        continue;
      }
      const TensorView c =
          Part(product_, scales_->c, task_.batch, task_.row + i, 1, task_.column, task_.columns);
      Reader<float> reader(c);
      for (std::int64_t j = 0; j < task_.columns; j += kStage) {
        const std::int64_t n = std::min(kStage, task_.columns - j);
        std::copy_n(reader.Read(j, n), n, to + j);
      }
    }
  }

  void Store(const float* sums) {
    if (images_.out != nullptr) {
      return images_.out->Write(task_.batch, task_.row, task_.rows, task_.column, task_.columns,
                                sums, state_columns_, buffers_.b_image);
    }
    const TensorView out = Part(product_, product_.out, task_.batch, task_.row, task_.rows,
                                task_.column, task_.columns);
    const bool direct = out.dtype == DType::f32 && out.stride[1] == 1;
    for (std::int64_t i = 0; i < task_.rows; ++i) {
      if (direct) {
        float* to = static_cast<float*>(out.data) + i * out.stride[0];
        std::copy_n(sums + i * state_columns_, task_.columns, to);
        continue;
      }
      for (std::int64_t j = 0; j < task_.columns; j += kStage) {
        const std::int64_t n = std::min(kStage, task_.columns - j);
        const TensorView part = RowOf(out, i, j, n);
        Writer<float> writer(part);
        std::copy_n(sums + i * state_columns_ + j, n, writer.Target(0, n));
        writer.Flush(0, n);
      }
    }
  }

  Buffers buffers_;  ///< taken from the thread: a product in a signal's handler allocates others
  const MatrixProduct& product_;
  const AccumulatorPlan& plan_;
  GemmPlan sum_;       ///< plan_.sum with the next draw as its first
  BlockFmaPlan unit_;  ///< plan_.unit with the next draw as its first
  GivenDraws given_;
  const ProductScales* scales_;
  ProductImages images_;
  std::int64_t state_columns_, plane_, depth_;
  std::int64_t padded_rows_;
  std::int64_t origin_ = 0;  ///< the first k of the sums (AddAll)
  Panels a_, b_;
  float* state_;
  float* outer_;
  float* total_ = nullptr;                  ///< the totals of scaled sums
  std::vector<float> row_;                  ///< zeros
  std::vector<float> a_lines_, b_lines_;    ///< scales of each row and column
  std::vector<float> a_groups_, b_groups_;  ///< scales of each line for a unit's groups of k
  Task task_{};
};

/// Returns the name of the kernel that computes a product's blocks.
const char* KernelOf(const AccumulatorPlan& plan) {
  if (plan.scheme == Scheme::block_fma) return "block_fma";
  return plan.scheme == Scheme::fixed ? "fixed" : "gemm";
}

/// Returns the maximum number of sums that one thread computes alone.
std::int64_t SerialSums(const AccumulatorPlan& plan, std::int64_t depth) {
  const bool fast = (plan.scheme == Scheme::sequential || plan.scheme == Scheme::chunked) &&
                    plan.sum.sum.mode != Rounding::stochastic;
  return kSerialWork / (std::max<std::int64_t>(1, depth) * (fast ? 1 : 4));
}

/// Computes a product; `scales` may be null (none). Kernels set the floating-point environment.
void RunProduct(const GemmCall& call, const ProductScales* scales) {
  const MatrixProduct& product = call.product;
  const std::int64_t sums = product.batch() * product.rows * product.columns;
  const std::int64_t alone = SerialSums(call.plan, product.depth);
  const std::int64_t worth = sums <= alone ? 1 : 2 * sums / std::max<std::int64_t>(1, alone);
  const GemmGrid grid = divided({product.batch(),
                                 {product.rows, Kernels().gemm_rows, 1},
                                 {product.columns, Kernels().gemm_columns, 1}},
                                kMostLines, std::min<std::int64_t>(MaxThreads(), worth));
  if (Explains()) {
    NoteKernel(KernelOf(call.plan),
               {grid.rows.most(), grid.columns.most(), DepthStep(call.plan, product.depth)});
  }
  const std::int64_t tasks = grid.tasks();
  const std::int64_t down = grid.rows.blocks;
  const std::int64_t across = grid.columns.blocks;
  const std::int64_t serial = sums <= alone ? tasks : tasks * alone / sums;
  parallel_for(tasks, 1, serial, [&](std::int64_t begin, std::int64_t end) {
    Worker worker(call, scales, grid.rows.most(), grid.columns.most());
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t i = t / across % down;
      const std::int64_t j = t % across;
      const std::int64_t row = grid.rows.begin(i);
      const std::int64_t column = grid.columns.begin(j);
      worker.Run({t / across / down, row, grid.rows.begin(i + 1) - row, column,
                  grid.columns.begin(j + 1) - column});
    }
  });
}

}  // namespace

namespace cpu {

ProductPath product_path(const AccumulatorPlan& plan, bool given) {
  const GemmPath path = plan.ends_in_kernel() ? GemmPath{} : Kernels().gemm_path(plan.sum, given);
  return {path, Kernels().lanes, KernelOf(plan)};
}

int product(const Launch& /*launch*/, const GemmCall& call) {
  RunProduct(call, nullptr);
  return 0;
}

int product_scaled(const Launch& /*launch*/, const ScaledGemmCall& call) {
  RunProduct(call, &call.scales);
  return 0;
}

}  // namespace cpu
}  // namespace cpd
