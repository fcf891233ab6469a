// SPDX-License-Identifier: Apache-2.0
//
// Casts. Transposed tensors are cast in boxes (two-dimensional ranges). x or out is contiguous
// along one dimension of a box. Row-major indices, which select random integers, ascend by 1 along
// the other. So neither memory nor random integers are accessed element by element.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "cpd/backend/cpu/boxes.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

/// kBoxElements: the number of elements of a box, chosen so that its values and random integers fit
/// into L2. kBoxColumns: the number of columns of a box. Random integers are generated in blocks of
/// kBlock. If the tensor's width is not a multiple of kBlock, a box's edge can divide a block,
/// which is then generated for both boxes. Wider boxes make this rare.
constexpr std::int64_t kBoxElements = 1 << 16, kBoxColumns = kBlock;

/// Returns the dimension along which neighboring elements are neighbors in memory, or -1 if there
/// is none.
int UnitDimension(const TensorView& x) {
  const auto* const end = x.stride.begin() + x.rank;
  const auto* const unit = std::find(x.stride.begin(), end, 1);
  return unit == end ? -1 : static_cast<int>(unit - x.stride.begin());
}

/// Divides the tensors of a cast into boxes (two-dimensional ranges), which are cast one by one.
class Boxes {
 public:
  /// Divides the call's tensors into boxes. Returns nullopt if neither x nor out is contiguous
  /// along a dimension other than the last.
  static std::optional<Boxes> Of(const CastCall& call);

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }

  /// The position of one box in each tensor and among row-major indices. Rows and columns are in
  /// the order of `out`: elements of a row are neighbors in `out`. If `out` is contiguous along
  /// neither dimension, elements of a row have neighboring indices.
  struct Places {
    Box x, out, random, index;
  };
  [[nodiscard]] Places operator[](std::int64_t n) const;

 private:
  Boxes() = default;
  void Refine(const CastCall& call);
  [[nodiscard]] std::int64_t down() const { return (x_.shape[across_] + rows_ - 1) / rows_; }
  [[nodiscard]] std::int64_t along() const {
    return (x_.shape[x_.rank - 1] + columns_ - 1) / columns_;
  }

  TensorView x_, out_, random_;  ///< of one shape; random_ is x if there is none
  TensorView index_;             ///< strides of the row-major index
  int across_ = 0;               ///< one of the boxes' dimensions; the other is the last
  bool turned_ = false;          ///< boxes' columns are along across_
  std::int64_t rows_ = 1, columns_ = 1, size_ = 0;
};

/// Sets the views of the tensors. Dimensions that all tensors traverse with even strides are
/// merged.
void Boxes::Refine(const CastCall& call) {
  struct Walk {
    const Strided* of;
    TensorView* to;
    int dimension = 0;
    std::int64_t left = 0, stride = 0;
    void Enter(int d) {
      dimension = d;
      left = of->shape[d];
      stride = of->stride[d];
    }
  };
  std::array<Walk, 3> walks{
      {{&call.x, &x_}, {&call.out, &out_}, {call.random.data ? &call.random : &call.x, &random_}}};
  for (Walk& walk : walks) walk.Enter(walk.of->rank - 1);
  int rank = 0;
  for (std::int64_t before = 1; before < call.n; ++rank) {  // from the last dimension on
    const std::int64_t extent = std::ranges::min(walks, {}, &Walk::left).left;
    for (Walk& walk : walks) {
      walk.to->shape[rank] = extent;
      walk.to->stride[rank] = walk.stride;
      walk.left /= extent;
      walk.stride *= extent;
      if (walk.left == 1 && walk.dimension > 0) walk.Enter(walk.dimension - 1);
    }
    index_.shape[rank] = extent;
    index_.stride[rank] = before;
    before *= extent;
  }
  for (TensorView* view : {&x_, &out_, &random_, &index_}) {
    view->rank = rank;
    std::reverse(view->shape.begin(), view->shape.begin() + rank);
    std::reverse(view->stride.begin(), view->stride.begin() + rank);
  }
}

std::optional<Boxes> Boxes::Of(const CastCall& call) {
  if (call.x.rank == 1 && call.out.rank == 1) return std::nullopt;
  Boxes boxes;
  boxes.Refine(call);
  const int last = boxes.x_.rank - 1;
  boxes.across_ = UnitDimension(boxes.out_);
  boxes.turned_ = boxes.across_ >= 0 && boxes.across_ != last;
  if (!boxes.turned_) boxes.across_ = UnitDimension(boxes.x_);
  if (boxes.across_ < 0 || boxes.across_ == last) return std::nullopt;
  const std::int64_t height = boxes.x_.shape[boxes.across_];
  const std::int64_t width = boxes.x_.shape[last];
  const std::int64_t wanted = width % kBlock == 0 ? kBoxColumns : 2 * kBoxColumns;
  const std::int64_t least_rows = std::min(height, kBoxElements / wanted);
  boxes.columns_ = std::min(width, std::max(wanted, kBoxElements / least_rows));
  boxes.rows_ = std::min(height, kBoxElements / boxes.columns_);
  boxes.size_ = call.n / (height * width) * boxes.down() * boxes.along();
  return boxes;
}

Boxes::Places Boxes::operator[](std::int64_t n) const {
  const int last = x_.rank - 1;
  std::array<std::int64_t, TensorView::kMaxRank> at{};
  at[across_] = n % down() * rows_;
  n /= down();
  at[last] = n % along() * columns_;
  n /= along();
  for (int d = last - 1; d >= 0; --d) {
    if (d == across_) continue;
    at[d] = n % x_.shape[d];
    n /= x_.shape[d];
  }
  const auto place = [&](const TensorView& v) {
    Box box{0, std::min(rows_, v.shape[across_] - at[across_]),
            std::min(columns_, v.shape[last] - at[last]), v.stride[across_], v.stride[last]};
    for (int d = 0; d <= last; ++d) box.offset += at[d] * v.stride[d];
    if (turned_) {
      std::swap(box.rows, box.columns);
      std::swap(box.row_stride, box.column_stride);
    }
    return box;
  };
  return {place(x_), place(out_), place(random_), place(index_)};
}

template <class T>
Strided RowsOf(const Box& box, BoxRows<T> rows) {
  return Rows(rows.at, box.rows, box.columns, rows.stride);
}

bool Streams(const CastCall& call) {
  return call.n >= kStreamingFrom && call.x.data != call.out.data;
}

/// Casts the tensors on threads, one box (two-dimensional range) at a time.
template <class T>
void CastBoxes(const CastCall& call, const Boxes& boxes) {
  const bool streaming = Streams(call);
  const std::int64_t serial = kSerialBelow / (boxes.rows() * boxes.columns());
  if (Explains()) NoteKernel("cast", {boxes.rows(), boxes.columns()});
  parallel_for(boxes.size(), 1, serial, [&](std::int64_t begin, std::int64_t end) {
    BoxReader<T> reader(call.x);
    BoxWriter<T> writer(call.out);
    BoxIntegers drawn(*call.plan);
    BoxReader<std::uint32_t> given(call.random);
    const auto integers = [&](const Boxes::Places& at) -> BoxRows<const std::uint32_t> {
      if (call.plan->mode != Rounding::stochastic) return {nullptr, 0};
      if (call.random.data != nullptr) return given.Read(at.random);
      return {drawn.Read(at.index), at.index.columns};
    };
    for (std::int64_t n = begin; n < end; ++n) {
      const Boxes::Places at = boxes[n];
      Kernels().cast({.n = at.out.rows * at.out.columns,
                      .x = RowsOf(at.out, reader.Read(at.x)),
                      .random = RowsOf(at.out, integers(at)),
                      .out = RowsOf(at.out, writer.Target(at.out)),
                      .plan = call.plan,
                      .streaming = streaming && writer.is_direct(at.out)});
      writer.Flush(at.out);
    }
  });
}

/// Returns whether kernels can read and write the tensors' own memory.
bool IsDirect(const CastCall& call) {
  const DType type = call.x.dtype;
  if (!call.x.is_contiguous() || !call.out.is_contiguous() || type != call.out.dtype) return false;
  if (call.random.data != nullptr && !call.random.is_contiguous()) return false;
  return type == DType::f32 || type == DType::f64 || (type == DType::bf16 && !call.plan->wide);
}

void CastDirect(const CastCall& call) {
  const bool streaming = call.x.dtype != DType::bf16 && Streams(call);
  if (Explains()) NoteKernel("cast");
  parallel_for(call.n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Kernels().cast({.n = end - begin,
                    .first = begin,
                    .x = From(call.x, begin),
                    .random = From(call.random, begin),
                    .out = From(call.out, begin),
                    .plan = call.plan,
                    .streaming = streaming});
  });
}

/// Casts values of type T through buffers. Used if x, out or random is not contiguous or not of the
/// kernels' type.
template <class T>
void CastStages(const CastCall& call) {
  if (Explains()) NoteKernel("cast");
  parallel_for(call.n, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(call.x);
    Writer<T> writer(call.out);
    Reader<std::uint32_t> integers(call.random);
    ForRanges(begin, end, kStage, [&](std::int64_t i, std::int64_t n) {
      Kernels().cast({.n = n,
                      .first = i,
                      .x = Contiguous(reader.Read(i, n)),
                      .random = Contiguous(integers.Read(i, n)),
                      .out = Contiguous(writer.Target(i, n)),
                      .plan = call.plan});
      writer.Flush(i, n);
    });
  });
}

}  // namespace

int cast(const Launch& /*launch*/, const CastCall& call) {
  const bool wide = call.x.dtype == DType::f64;
  if (IsDirect(call)) {
    CastDirect(call);
  } else if (const auto boxes = Boxes::Of(call)) {
    wide ? CastBoxes<double>(call, *boxes) : CastBoxes<float>(call, *boxes);
  } else {
    wide ? CastStages<double>(call) : CastStages<float>(call);
  }
  return 0;
}

}  // namespace cpd::cpu
