// SPDX-License-Identifier: Apache-2.0
//
// Every codec by its text: the one list.
#pragma once

#include <span>
#include <string_view>

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// A compressor.
struct CodecInfo {
  std::string_view name;     ///< the first word of its texts
  std::string_view options;  ///< as they are written
  std::string_view source;   ///< paper and section, or the implementation whose rule it is
  std::string_view summary;
  SharedCodec (*make)(CodecWords& words, const RoundingOptions& rounding);
};
CPD_API std::span<const CodecInfo> Compressors();

/// Codecs that may be within each other, as in `feedback top_k 0.01 int4`.
constexpr int kMostNested = 8;

/// The codec of a text: a compressor's (`qsgd bits=4 bucket=512`), or the name of a format (packed)
/// or of a scaled format. `rounding`: of a format, but for the overflow of a scaled one, whose
/// elements saturate; a compressor has rules of its own and takes the seed and random_bits alone.
/// Throws Error for a text that is none, naming what there is.
CPD_API SharedCodec MakeCodec(std::string_view text, const RoundingOptions& rounding = {});

/// The codec that is within another: that of all words left, or of `otherwise` where none is.
SharedCodec MakeInner(CodecWords& words, std::string_view otherwise,
                      const RoundingOptions& rounding);

}  // namespace cpd
