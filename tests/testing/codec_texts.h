// SPDX-License-Identifier: Apache-2.0
//
// Texts of codecs, for tests over all codecs: every compressor, with the options that change its
// bytes; formats; scaled formats.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"

namespace cpd::testing {

/// A text for every kind of bytes that codecs make.
inline std::vector<std::string> codec_texts() {
  return {
      "e4m3",
      "e6m9",
      "fp32",
      "mxfp8",
      "nvfp4",
      "int5 7 scale=bf16",
      "qsgd",
      "qsgd bits=2 bucket=tensor",
      "qsgd bits=9 bucket=100 norm=2",
      "qsgd bits=8 levels=intervals",
      "qsgd bits=1 bucket=64 levels=intervals",
      "qsgd s=16 bucket=64",
      "qsgd bits=3 bucket=64 axis=0",
      "qsgd bits=3 bucket=64 whole=9",
      "qsgd s=16 bucket=64 norm=2 coding=elias-sparse",
      "qsgd coding=elias-dense",
      "qsgd norm=2 coding=elias-sparse",
      "qsgd bits=3 bucket=50 coding=smallest",
      "qsgd bits=3 bucket=50 spacing=optimal",
      "terngrad",
      "terngrad share=off bucket=512",
      "terngrad bucket=64 whole=9",
      "terngrad coding=trits",
      "terngrad clip=1 clip_at=workers",
      "fp8_rows",
      "int8_rows",
      "int4 bucket=7 stochastic",
      "quantized mxfp4",
      "one_bit",
      "one_bit bucket=64",
      "one_bit bucket=64 axis=0",
      "top_k 0.1",
      "top_k 0.3 feedback=off qsgd bits=4",
      "top_k 0.2 e4m3",
      "uniform",
      "uniform bits=8",
      "uniform bits=3 coding=fixed",
      "uniform bits=6 results=encoded",
      "sparse",
      "sparse e4m3",
      "blockwise nvfp4",
      "blockwise uniform bits=4",
      "feedback int4",
  };
}

/// Returns whether every compressor is in `texts`.
inline bool has_every_compressor(const std::vector<std::string>& texts) {
  return std::ranges::all_of(Compressors(), [&](const CodecInfo& info) {
    return std::ranges::any_of(
        texts, [&](const std::string& text) { return text.starts_with(info.name); });
  });
}

}  // namespace cpd::testing
