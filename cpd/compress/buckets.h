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

namespace cpd {

class CodecWords;

/// Reads the option `bucket=N` or `bucket=tensor`, which is 0, and `whole=N` as TakeWhole does.
std::int64_t TakeBucket(CodecWords& words, std::int64_t otherwise);
/// Reads the option `whole=N` of buckets that split no run of N values, counted from the layer's
/// first, such as a kernel of a convolution (QSGD, section 5). Returns the length of such a bucket,
/// the largest multiple of N that is at most `bucket`. Throws Error unless N is 1…bucket, and where
/// there are no buckets, `bucket` 0, unless it is 1.
std::int64_t TakeWhole(CodecWords& words, std::int64_t bucket);
std::string BucketText(std::int64_t bucket);

/// Reads the option `axis=N`, an axis of a layer, from -64 (of 64 dimensions the first) to 63.
std::optional<int> TakeAxis(CodecWords& words);
std::string AxisText(std::optional<int> axis);

/// The layout of a layer of this shape whose columns run along `axis`: by default along the first
/// of two dimensions (outputs × inputs) and the last of more (kernels of convolutions); a vector is
/// one column. A row of the layout is a column of the layer. Throws Error for an axis that the
/// shape lacks; `codec` is the name that it shows.
RowLayout ColumnLayout(std::optional<int> axis, std::span<const std::int64_t> shape,
                       std::string_view codec);

}  // namespace cpd
