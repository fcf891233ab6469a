// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/buckets.h"

#include <algorithm>

#include "cpd/spec/error.h"

namespace cpd {

std::int64_t ParseBucket(std::string_view text) {
  return text == "tensor" ? 0 : ParseInteger("bucket", text, 1, kMostBucket);
}

std::string BucketText(std::int64_t bucket) {
  return bucket == 0 ? "tensor" : std::to_string(bucket);
}

std::int64_t WholeBucket(std::int64_t bucket, std::string_view text) {
  const std::int64_t whole = ParseInteger("whole", text, 1, bucket == 0 ? kMostBucket : bucket);
  if (bucket == 0 && whole != 1) {
    throw Error("whole=" + std::to_string(whole) + " is of buckets: give bucket=N with it");
  }
  return bucket / whole * whole;
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
