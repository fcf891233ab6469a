// SPDX-License-Identifier: Apache-2.0
//
// The options that divide a layer into buckets: the length of a bucket, and the axis along which
// the columns of a layer run. A bucket is consecutive values in row-major order, or with an axis in
// the order of the columns. The last bucket may be shorter. If the length of a column is not a
// multiple of the bucket, a bucket may hold the end of one column and the beginning of the next, as
// in the reshaped matrices of Grubic et al. (section 3.2.2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cpd/compress/codec.h"
#include "cpd/compress/words.h"

namespace cpd {

constexpr std::int64_t kMostAxis = 63;

/// Parses the value of `bucket=`: N, or `tensor`, which gives 0.
std::int64_t ParseBucket(std::string_view text);
std::string BucketText(std::int64_t bucket);
/// Returns the largest multiple of `whole` up to `bucket`. Buckets of this length split no group of
/// `whole` values, such as a kernel of a convolution (QSGD, section 5). Groups are counted from the
/// first value of the layer. Throws Error unless `whole` is 1…bucket; if `bucket` is 0 (no
/// buckets), unless `whole` is 1.
std::int64_t WholeBucket(std::int64_t bucket, std::string_view whole);

/// The keys `bucket`, `whole` and `axis` for a codec's table of options. The canonical text has no
/// `whole`: `bucket=512 whole=9` becomes `bucket=504`. `axis` is an axis of a layer, -64…63. A
/// negative axis counts from the end: -1 is the last dimension. With an axis, `whole` counts along
/// columns.
template <auto member>
constexpr auto BucketKey(Condition<decltype(ClassOf(member))> always = nullptr) {
  using Options = decltype(ClassOf(member));
  return Key<Options>{
      "bucket",
      "word",
      [](Options& options, std::string_view text) { options.*member = ParseBucket(text); },
      [](const Options& options) { return FieldOf(BucketText(options.*member)); },
      nullptr,
      always};
}
template <auto member>
constexpr auto WholeKey() {
  using Options = decltype(ClassOf(member));
  return Key<Options>{"whole", "integer",
                      [](Options& options, std::string_view text) {
                        options.*member = WholeBucket(options.*member, text);
                      },
                      [](const Options& /*options*/) { return FieldValue{}; }};
}
template <auto member>
constexpr auto AxisKey() {
  return RangedKey<"axis", member, -kMostAxis - 1, kMostAxis>();
}

/// Returns the layout of a layer of this shape whose columns run along `axis`. A row of the layout
/// is a column of the layer. Default: the columns of two dimensions run along the first (outputs ×
/// inputs), the columns of more dimensions along the last (kernels of convolutions); a vector is
/// one column. Throws Error for an axis that the shape lacks. The error names `codec`.
RowLayout ColumnLayout(std::optional<int> axis, std::span<const std::int64_t> shape,
                       std::string_view codec);

}  // namespace cpd
