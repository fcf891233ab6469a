// SPDX-License-Identifier: Apache-2.0
//
// The options of how a codec's buckets cut a layer: their length, and the columns along which they
// run.
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

/// `bucket=N` or `bucket=tensor`, which is 0.
std::int64_t ParseBucket(std::string_view text);
std::string BucketText(std::int64_t bucket);
/// Returns the length of buckets that split no group of `whole` values, counted from the layer's
/// first, such as a kernel of a convolution (QSGD, section 5): the largest multiple up to `bucket`.
/// Throws Error unless `whole` is 1…bucket; without buckets (`bucket` 0), unless it is 1.
std::int64_t WholeBucket(std::int64_t bucket, std::string_view whole);

/// The rows of a table: `bucket`, `whole`, and `axis`, an axis of a layer, from -64 (of 64
/// dimensions the first) to 63.
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

/// Returns the layout of a layer of this shape whose columns run along `axis`. Default: along the
/// first of two dimensions (outputs × inputs) and the last of more (kernels of convolutions); a
/// vector is one column. A row of the layout is a column of the layer. Throws Error for an axis
/// that the shape lacks, with the name `codec`.
RowLayout ColumnLayout(std::optional<int> axis, std::span<const std::int64_t> shape,
                       std::string_view codec);

}  // namespace cpd
