// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/image_operand.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "cpd/backend/cpu/elementwise.h"

namespace cpd {
namespace {

/// Returns the lowest q for which q * n >= x. n must be positive.
std::int64_t quotient_up(std::int64_t x, std::int64_t n) {
  return x > 0 ? (x + n - 1) / n : -(-x / n);
}

/// Returns whether windows and elements of the image coincide along this axis: each window is one
/// element, and each element is a window.
bool IsWhole(const WindowAxis& axis, std::int64_t extent) {
  return axis.kernel == 1 && axis.places == extent && axis.step == 1 && axis.before == 0 &&
         axis.spread == 1;
}

template <class T>
void CopyStrided(const T* from, std::int64_t from_step, std::int64_t n, T* to,
                 std::int64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    std::copy_n(from, n, to);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = from[i * from_step];
  }
}

}  // namespace

std::int64_t Windows::taps() const {
  std::int64_t n = 1;
  for (int d = 0; d < rank; ++d) n *= axes[static_cast<std::size_t>(d)].kernel;
  return n;
}
std::int64_t Windows::places() const {
  std::int64_t n = 1;
  for (int d = 0; d < rank; ++d) n *= axes[static_cast<std::size_t>(d)].places;
  return n;
}

ImageOperand::ImageOperand(const TensorView& image, std::int64_t groups, const Windows& windows,
                           Batch batch, Rows rows)
    : image_(image),
      groups_(groups),
      channels_(image.shape[1] / groups),
      windows_(windows),
      taps_(windows.taps()),
      places_(windows.places()),
      batch_(batch),
      rows_(rows) {
  MergeAxes();
  FindLastTaps();
}

/// Merges the last two axes into one, repeatedly. Two axes can be merged if along each of them
/// every window is one element of the image (IsWhole), and if the image's rows follow one another
/// evenly.
void ImageOperand::MergeAxes() {
  while (windows_.rank > 1) {
    const auto here = static_cast<std::size_t>(windows_.rank) - 1;
    WindowAxis& outer = windows_.axes[here - 1];
    const std::int64_t extent = image_.shape[here + 2];
    const bool merges = IsWhole(windows_.axes[here], extent) &&
                        IsWhole(outer, image_.shape[here + 1]) &&
                        image_.stride[here + 1] == extent * image_.stride[here + 2];
    if (!merges) return;
    outer.places *= extent;
    image_.shape[here + 1] *= extent;
    image_.stride[here + 1] = image_.stride[here + 2];
    --windows_.rank;
  }
}

void ImageOperand::FindLastTaps() {
  const auto last = static_cast<std::size_t>(windows_.rank) - 1;
  const WindowAxis& axis = windows_.axes[last];
  const std::int64_t extent = image_.shape[last + 2];
  every_ = axis.spread / std::gcd(axis.step, axis.spread);
  last_step_ = axis.step * every_ / axis.spread * image_.stride[last + 2];
  for (std::int64_t tap = 0; tap < axis.kernel; ++tap) {
    const std::int64_t start = tap * axis.dilation - axis.before;
    LastTap found;
    found.end =
        std::max<std::int64_t>(0, quotient_up((extent - 1) * axis.spread + 1 - start, axis.step));
    found.first = std::max<std::int64_t>(0, quotient_up(-start, axis.step));
    const auto between = [&] { return (found.first * axis.step + start) % axis.spread != 0; };
    for (std::int64_t i = 0; i < every_ && between(); ++i) ++found.first;
    if (between() || extent == 0) found.first = found.end = 0;
    found.offset = (found.first * axis.step + start) / axis.spread * image_.stride[last + 2];
    last_.push_back(found);
  }
}

ImageOperand::Term ImageOperand::TermAt(std::int64_t number) const {
  Term term;
  for (int d = windows_.rank - 1; d >= 0; --d) {
    const std::int64_t kernel = windows_.axes[static_cast<std::size_t>(d)].kernel;
    term.tap[static_cast<std::size_t>(d)] = number % kernel;
    number /= kernel;
  }
  term.channel = number;
  return term;
}

void ImageOperand::Advance(Term& term) const {
  for (int d = windows_.rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    if (++term.tap[at] < windows_.axes[at].kernel) return;
    term.tap[at] = 0;
  }
  ++term.channel;
}

void ImageOperand::FindRuns(std::int64_t first, std::int64_t n, std::vector<Run>& runs) const {
  runs.clear();
  const int last = windows_.rank - 1;
  const std::int64_t along = windows_.axes[static_cast<std::size_t>(last)].places;
  while (n > 0) {
    Run run;
    std::int64_t rest = first / along;
    run.place = first % along;
    run.count = std::min(n, along - run.place);
    for (int d = last - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      const WindowAxis& axis = windows_.axes[at];
      run.at[at] = rest % axis.places * axis.step - axis.before;
      rest /= axis.places;
    }
    run.image = rest * image_.stride[0];
    runs.push_back(run);
    first += run.count;
    n -= run.count;
  }
}

std::int64_t ImageOperand::ImageOf(std::int64_t batch) const {
  return batch_ == Batch::groups ? 0 : batch / groups_;
}

std::int64_t ImageOperand::OffsetOf(std::int64_t batch, const Term& term) const {
  const std::int64_t group = batch_ == Batch::groups ? batch : batch % groups_;
  return (group * channels_ + term.channel) * image_.stride[1];
}

/// For the windows in `run`, finds the row of the image from which the term (a channel and a kernel
/// element) is read, and adds that row's offset to `offset`. Returns false if there is no such row.
bool ImageOperand::Locate(const Run& run, const Term& term, std::int64_t& offset) const {
  offset += run.image;
  for (int d = 0; d < windows_.rank - 1; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const WindowAxis& axis = windows_.axes[at];
    std::int64_t position = run.at[at] + term.tap[at] * axis.dilation;
    if (position < 0) return false;
    if (axis.spread != 1) {
      if (position % axis.spread != 0) return false;
      position /= axis.spread;
    }
    if (position >= image_.shape[at + 2]) return false;
    offset += position * image_.stride[at + 2];
  }
  return true;
}

/// Copies `terms` rows of the unfolded image to `to`, one row after the other. A row is for one
/// channel and one element of the convolution's kernel. It has one value for each window in `runs`.
template <class T>
void ImageOperand::Fill(std::int64_t batch, std::int64_t first_term, std::int64_t terms,
                        const std::vector<Run>& runs, T* to) const {
  const T* data = static_cast<const T*>(image_.data);
  const auto last = static_cast<std::size_t>(windows_.rank) - 1;
  Term term = TermAt(first_term);
  for (std::int64_t i = 0; i < terms; ++i, Advance(term)) {
    const std::int64_t channel = OffsetOf(batch, term);
    const LastTap& taps = last_[static_cast<std::size_t>(term.tap[last])];
    for (const Run& run : runs) {
      T* const row = to;
      to += run.count;
      std::int64_t offset = channel;
      const std::int64_t skipped = std::max<std::int64_t>(0, run.place - taps.first);
      const std::int64_t number = (skipped + every_ - 1) / every_;
      const std::int64_t begin = taps.first + number * every_ - run.place;
      const std::int64_t end = std::min(run.count, taps.end - run.place);
      if (begin >= end || !Locate(run, term, offset)) {
        std::fill_n(row, run.count, T{0});
        continue;
      }
      const T* from = data + offset + taps.offset + number * last_step_;
      if (every_ == 1) {
        std::fill_n(row, begin, T{0});
        CopyStrided(from, last_step_, end - begin, row + begin, 1);
        std::fill_n(row + end, run.count - end, T{0});
      } else {
        std::fill_n(row, run.count, T{0});
        CopyStrided(from, last_step_, (end - begin + every_ - 1) / every_, row + begin, every_);
      }
    }
  }
}

/// Writes one row of the unfolded image back to the image. The row is for one channel and one
/// element of the convolution's kernel. `from` has one value for each window in `runs`.
template <class T>
void ImageOperand::Put(std::int64_t batch, std::int64_t term, const std::vector<Run>& runs,
                       const T* from) const {
  T* data = static_cast<T*>(image_.data);
  const Term at = TermAt(term);
  const LastTap& taps =
      last_[static_cast<std::size_t>(at.tap[static_cast<std::size_t>(windows_.rank - 1)])];
  for (const Run& run : runs) {
    std::int64_t offset = OffsetOf(batch, at);
    Locate(run, at, offset);
    CopyStrided(from, 1, run.count, data + offset + taps.offset + run.place * last_step_,
                last_step_);
    from += run.count;
  }
}

TensorView ImageOperand::Read(std::int64_t batch, std::int64_t row, std::int64_t rows,
                              std::int64_t column, std::int64_t columns,
                              ImageBuffer& buffer) const {
  const bool turned = rows_ == Rows::windows;
  const std::int64_t terms = turned ? columns : rows;
  const std::int64_t windows = turned ? rows : columns;
  const std::int64_t first_term = turned ? column : row;
  const std::int64_t n = terms * windows;
  FindRuns(ImageOf(batch) * places_ + (turned ? row : column), windows, buffer.runs);
  float* values = Sized(buffer.values, n);
  if (image_.dtype == DType::f32) {
    Fill(batch, first_term, terms, buffer.runs, values);
  } else {
    std::uint16_t* halves = Sized(buffer.halves, n);
    Fill(batch, first_term, terms, buffer.runs, halves);
    const TensorView raw = View(halves, image_.dtype, n);
    Reader<float> reader(raw);
    for (std::int64_t i = 0; i < n; i += kStage) {
      const std::int64_t count = std::min(kStage, n - i);
      std::copy_n(reader.Read(i, count), count, values + i);
    }
  }
  TensorView view;
  view.data = values;
  view.rank = 2;
  view.shape = {rows, columns};
  view.stride = {turned ? 1 : windows, turned ? windows : 1};
  return view;
}

void ImageOperand::Write(std::int64_t batch, std::int64_t row, std::int64_t rows,
                         std::int64_t column, std::int64_t columns, const float* from,
                         std::int64_t stride, ImageBuffer& buffer) const {
  FindRuns(ImageOf(batch) * places_ + column, columns, buffer.runs);
  for (std::int64_t i = 0; i < rows; ++i, from += stride) {
    if (image_.dtype == DType::f32) {
      Put(batch, row + i, buffer.runs, from);
      continue;
    }
    std::uint16_t* halves = Sized(buffer.halves, columns);
    const TensorView raw = View(halves, image_.dtype, columns);
    Writer<float> writer(raw);
    for (std::int64_t j = 0; j < columns; j += kStage) {
      const std::int64_t count = std::min(kStage, columns - j);
      std::copy_n(from + j, count, writer.Target(j, count));
      writer.Flush(j, count);
    }
    Put(batch, row + i, buffer.runs, halves);
  }
}

}  // namespace cpd
