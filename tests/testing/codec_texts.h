// SPDX-License-Identifier: Apache-2.0
//
// Texts of codecs, for tests and benchmarks that go over all of them: every compressor with the
// options that change what its bytes are, formats, and scaled formats.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/compress/codecs.h"

namespace cpd::testing {

/// A text of every kind of bytes that codecs make.
inline std::vector<std::string> codec_texts() {
  return {"e4m3", "e6m9", "fp32", "mxfp8", "nvfp4", "int5 7 scale=bf16"};
}

/// Whether every compressor is in `texts`, by itself or within another.
inline bool has_every_compressor(const std::vector<std::string>& texts) {
  return std::ranges::all_of(Compressors(), [&](const CodecInfo& info) {
    return std::ranges::any_of(texts, [&](const std::string& text) {
      return std::string_view(text).starts_with(info.name);
    });
  });
}

}  // namespace cpd::testing
