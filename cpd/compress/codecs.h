// SPDX-License-Identifier: Apache-2.0
//
// The list of all codecs, each made from its text.
#pragma once

#include <span>
#include <string_view>

#include "cpd/compress/codec.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// A compressor: a codec that is not the name of a format.
struct CodecInfo {
  std::string_view name;     ///< the first word of its texts
  std::string_view options;  ///< as a text has them
  std::string_view source;   ///< paper and section, or the implementation that defines the rule
  std::string_view summary;
  SharedCodec (*make)(CodecWords& words, const RoundingOptions& rounding);
};
CPD_API std::span<const CodecInfo> Compressors();

/// The most codecs nested in each other, as in `feedback top_k 0.01 int4`.
constexpr int kMostNested = 8;

/// The codec of a text: a compressor's (`qsgd bits=4 bucket=512`), or the name of a format (packed)
/// or of a scaled format. `rounding` applies to a format, except the overflow of a scaled one,
/// whose elements saturate; a compressor has rules of its own and uses only random_bits.
/// `keys` replace the text's own. Throws Error for any other text, with the names of
/// all compressors.
CPD_API SharedCodec MakeCodec(std::string_view text, const RoundingOptions& rounding = {},
                              std::span<const Option> keys = {});

/// Makes the codec inside another: from all words left, or from `otherwise` if none is left.
SharedCodec MakeInner(CodecWords& words, std::string_view otherwise,
                      const RoundingOptions& rounding);

}  // namespace cpd
