// SPDX-License-Identifier: Apache-2.0
//
// The list of all codecs. Each codec is made from its text.
#pragma once

#include <span>
#include <string_view>

#include "cpd/compress/codec.h"
#include "cpd/spec/fields.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// A compressor: a codec whose text is not the name of a format.
struct CodecInfo {
  std::string_view name;     ///< the first word of its texts
  std::string_view options;  ///< as a text has them
  std::string_view source;   ///< paper and section, or the implementation that defines the rule
  std::string_view summary;
  SharedCodec (*make)(CodecWords& words, const RoundingOptions& rounding);
};
CPD_API std::span<const CodecInfo> Compressors();

/// The largest depth of nested codecs. `feedback top_k 0.01 int4` has depth 3.
constexpr int kMostNested = 8;

/// Makes the codec of a text. The text is a compressor (`qsgd bits=4 bucket=512`), or the name of a
/// format (packed codes) or of a scaled format. `rounding` applies to formats. The overflow of
/// `rounding` does not apply to scaled formats, whose elements always saturate. A compressor uses
/// only the random_bits of `rounding`, and defines all other roundings itself: its stochastic
/// rounding is variant A. `keys` replace options of the text. Throws Error for any other text, with
/// the names of all compressors.
CPD_API SharedCodec MakeCodec(std::string_view text, const RoundingOptions& rounding = {},
                              std::span<const Option> keys = {});

/// Makes the inner codec of a codec from the rest of the codec's text: all words left in `words`,
/// or the text `otherwise` if no word is left.
SharedCodec MakeInner(CodecWords& words, std::string_view otherwise,
                      const RoundingOptions& rounding);

}  // namespace cpd
