// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/buckets.h"

#include <algorithm>
#include <limits>

#include "cpd/compress/words.h"
#include "cpd/spec/error.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr int kMostAxis = 63;

}  // namespace

std::int64_t TakeBucket(CodecWords& words, std::int64_t otherwise) {
  const auto given = words.Option("bucket");
  std::int64_t bucket = otherwise;
  if (given && *given == "tensor") {
    bucket = 0;
  } else if (given) {
    bucket = CodecWords("bucket=" + *given).Integer("bucket", otherwise, 1, kMostBucket);
  }
  return TakeWhole(words, bucket);
}

std::int64_t TakeWhole(CodecWords& words, std::int64_t bucket) {
  const std::int64_t whole = words.Integer("whole", 1, 1, bucket == 0 ? kMostBucket : bucket);
  if (bucket == 0 && whole != 1) {
    throw Error("whole=" + std::to_string(whole) + " is of buckets: give bucket=N with it, got " +
                Quoted(words.text()));
  }
  return bucket / whole * whole;
}

std::string BucketText(std::int64_t bucket) {
  return " bucket=" + (bucket == 0 ? "tensor" : std::to_string(bucket));
}

std::optional<int> TakeAxis(CodecWords& words) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
  const std::int64_t axis = words.Integer("axis", kNone, -kMostAxis - 1, kMostAxis);
  return axis == kNone ? std::optional<int>() : static_cast<int>(axis);
}

std::string AxisText(std::optional<int> axis) {
  return axis ? " axis=" + std::to_string(*axis) : "";
}

RowLayout ColumnLayout(std::optional<int> axis, std::span<const std::int64_t> shape,
                       std::string_view codec) {
  const auto dimensions = static_cast<int>(shape.size());
  if (dimensions < 2) return {.row = std::max<std::int64_t>(1, dimensions == 0 ? 1 : shape[0])};
  const int last = dimensions - 1;
  int along = axis.value_or(dimensions == 2 ? 0 : last);
  if (along < -dimensions || along > last) {
    std::string extents;
    for (const std::int64_t extent : shape) extents += ", " + std::to_string(extent);
    throw Error("axis must be " + std::to_string(-dimensions) + "…" + std::to_string(last) +
                " for a tensor of shape (" + extents.substr(2) + "), got " + std::to_string(along) +
                ", in '" + std::string(codec) + "'");
  }
  if (along < 0) along += dimensions;
  const std::int64_t row = std::max<std::int64_t>(1, shape[static_cast<std::size_t>(along)]);
  return {along == last ? std::nullopt : std::optional(along), row};
}

}  // namespace cpd
