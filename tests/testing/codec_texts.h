// SPDX-License-Identifier: Apache-2.0
//
// Texts of codecs for tests that cover all codecs: formats, scaled formats, and every compressor
// with the options that change its bytes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"

namespace cpd::testing {

/// Returns texts of codecs, one for every kind of bytes that codecs write.
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

/// Returns further texts: the same codecs with other options and sizes, and codecs within codecs.
inline std::vector<std::string> more_codec_texts() {
  return {
      "e3m0",
      "e5m2",
      "fp16",
      "mxfp6-e2m3",
      "fp8-tensor",
      "e2m1 4500 scale=e4m3fn",
      "e5m2 1",
      "e3m2 3 scale=e4m2",
      "fp8_rows row=27",
      "int8_rows row=576 stochastic",
      "int4",
      "quantized int8 512 scale=fp32",
      "quantized mxfp8 stochastic",
      "quantized e3m2 3 scale=e4m2",
      "one_bit bucket=1",
      "one_bit bucket=3",
      "one_bit bucket=13",
      "one_bit bucket=65",
      "one_bit bucket=100 axis=0",
      "one_bit bucket=4095",
      "one_bit bucket=65536",
      "uniform bits=1",
      "uniform bits=5 coding=fixed",
      "uniform bits=16",
      "uniform bits=18",
      "uniform bits=30",
      "uniform bits=27 coding=fixed",
      "uniform c=2 sample=3 fraction=0.5",
      "uniform bits=gradient c1=7",
      "blockwise uniform",
      "blockwise qsgd bits=5 bucket=tensor",
      "blockwise terngrad share=off",
      "feedback e4m3",
      "feedback mxfp8",
      "feedback fp8-tensor",
      "feedback blockwise nvfp4",
      "feedback int4 32 scale=fp32",
      "feedback int8_rows row=100",
      "feedback qsgd bits=2 bucket=128",
      "feedback qsgd bits=4 bucket=tensor",
      "feedback terngrad share=off",
      "qsgd bits=2 bucket=128 norm=2",
      "qsgd bits=16 bucket=8192",
      "qsgd bits=7 bucket=9 levels=intervals",
      "qsgd bits=6 bucket=4500 levels=intervals",
      "qsgd bits=1 levels=intervals",
      "qsgd bits=5 bucket=tensor",
      "qsgd bits=5 bucket=100 axis=0",
      "qsgd bits=5 bucket=100 whole=9",
      "qsgd s=1 bucket=tensor norm=2",
      "qsgd s=16",
      "qsgd s=22 bucket=50 norm=2 coding=elias-sparse",
      "qsgd s=300 bucket=50 coding=smallest",
      "qsgd s=5 bucket=50 spacing=optimal",
      "qsgd bits=8 bucket=100 spacing=optimal",
      "qsgd bucket=tensor norm=2 spacing=optimal",
      "qsgd s=127 bucket=100 coding=elias-dense spacing=optimal",
      "terngrad clip=none share=off",
      "terngrad bucket=100",
      "terngrad clip_at=workers",
      "terngrad clip=none share=off coding=trits",
      "terngrad bucket=13 coding=trits",
      "sparse e5m2",
      "top_k 0.5 feedback=off",
      "top_k 1 e4m3",
      "top_k 0.3 int4 stochastic",
      "top_k 0.3 int4 bucket=7",
      "top_k 0.05 mxfp8",
      "top_k 0.5 fp8-tensor",
      "top_k 0.1 qsgd bits=4",
      "top_k 0.1 qsgd bits=4 bucket=16 coding=elias-dense",
      "top_k 0.1 terngrad",
      "top_k 0.1 terngrad share=off",
  };
}

/// Returns whether `texts` contains every compressor.
inline bool has_every_compressor(const std::vector<std::string>& texts) {
  return std::ranges::all_of(Compressors(), [&](const CodecInfo& info) {
    return std::ranges::any_of(
        texts, [&](const std::string& text) { return text.starts_with(info.name); });
  });
}

}  // namespace cpd::testing
