// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/codecs.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "cpd/compress/blockwise.h"
#include "cpd/compress/feedback.h"
#include "cpd/compress/one_bit.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/qsgd.h"
#include "cpd/compress/quantized.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/compress/sparse.h"
#include "cpd/compress/terngrad.h"
#include "cpd/compress/top_k.h"
#include "cpd/compress/uniform.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr std::array kCompressors{
    CodecInfo{"qsgd",
              "bits=4|s=N bucket=512|tensor whole=N axis=N norm=max|2 levels=signed|intervals "
              "coding=fixed|elias-dense|elias-sparse|smallest spacing=uniform|optimal",
              "Alistarh et al., NeurIPS 2017, section 3; Grubic et al., EDBT 2018, section 3.2.2",
              "levels below the norms of buckets, rounded without bias", MakeQsgd},
    CodecInfo{"terngrad",
              "clip=2.5|none share=on|off bucket=tensor|N whole=N clip_at=scaler|workers "
              "coding=fixed|trits",
              "Wen et al., NeurIPS 2017", "-1, 0 and 1 times a scaler, rounded without bias",
              MakeTernGrad},
    CodecInfo{"one_bit", "bucket=N whole=N axis=N",
              "Seide et al., Interspeech 2014; Grubic et al., EDBT 2018, section 3.2.1",
              "a bit a value, two means a column or bucket; feeds its errors back", OneBit::Make},
    CodecInfo{"top_k", "FRACTION feedback=on|off [CODEC]",
              "Alistarh et al., NeurIPS 2017, section 3.3; Aji and Heafield, EMNLP 2017",
              "the largest values, by any codec; what is left out is fed back", TopK::Make},
    CodecInfo{"fp8_rows", "[row=N]", "torchft/quantization.py at 001d404",
              "e4m3fn times max/448 of each row, a vector is one", Quantized::MakeFp8Rows},
    CodecInfo{"int8_rows", "[row=N] [stochastic]", "this library",
              "8-bit integers times max/127 of each row, a vector is one", Quantized::MakeInt8Rows},
    CodecInfo{"int4", "[bucket=32] [stochastic]", "arXiv 2306.10209, section 3.3",
              "4-bit integers times max/7 of each bucket", Quantized::MakeInt4},
    CodecInfo{"quantized", "SCALED [stochastic]", "this library",
              "a scaled format whose sums are encoded again", Quantized::MakeScaled},
    CodecInfo{"blockwise", "CODEC", "this library",
              "a codec of whole layers, of each 4096 values; sums are encoded again",
              Blockwise::Make},
    CodecInfo{"feedback", "CODEC", "Seide et al., Interspeech 2014; arXiv 2407.04480",
              "any other codec, whose errors the next call sends", Feedback::Make},
    CodecInfo{"uniform",
              "bits=entropy|gradient|N [c=6 sample=4 fraction=0.03] [c0=1 c1=8] "
              "coding=huffman|fixed results=exact|encoded",
              "Øland and Raj, ICASSP 2015", "weights in bins of equal width, Huffman-coded",
              Uniform::Make},
    CodecInfo{"sparse", "[FORMAT]", "this library", "all values but +0, without loss",
              Sparse::Make},
};

/// Throws Error for options of a rounding that a compressor does not use.
void CheckForCompressor(std::string_view text, const RoundingOptions& rounding) {
  Check(rounding);
  const bool usual =
      rounding.mode == Rounding::nearest_even || rounding.mode == Rounding::stochastic;
  if (usual && rounding.variant == Variant::A) return;
  throw Error("codec " + Quoted(text) + " has a rounding of its own: give random_bits alone");
}

SharedCodec OfFormat(std::string_view text, const RoundingOptions& rounding) {
  try {
    return std::make_shared<Packed>(ParseFormat(text), rounding);
  } catch (const Error& no_format) {
    try {
      RoundingOptions saturating = rounding;
      saturating.overflow = Overflow::saturate;
      return std::make_shared<ScaledBlocks>(ParseScaled(text), saturating);
    } catch (const Error& no_scaled) {
      std::string names;
      for (const CodecInfo& info : Compressors()) {
        names += (names.empty() ? "" : ", ") + std::string(info.name);
      }
      const std::string format = no_format.what();
      const std::string scaled = no_scaled.what();
      throw Error("unknown codec " + Quoted(text) + ": expected one of " + names +
                  ", a format or a scaled format (" + format +
                  (scaled == format ? "" : "; " + scaled) + ")");
    }
  }
}

SharedCodec Make(std::string_view text, int depth, const RoundingOptions& rounding,
                 std::span<const Option> keys = {}) {
  if (depth > kMostNested) {
    throw Error("codecs may be within each other " + std::to_string(kMostNested) +
                " deep at most, got " + Quoted(text) + " within as many");
  }
  CodecWords words(text, depth);
  if (!keys.empty()) words.Replace(keys);
  const std::string name = words.Next();
  const auto found = std::ranges::find(Compressors(), name, &CodecInfo::name);
  if (found == Compressors().end()) return OfFormat(words.text(), rounding);
  CheckForCompressor(text, rounding);
  return found->make(words, rounding);
}

}  // namespace

std::span<const CodecInfo> Compressors() { return kCompressors; }

SharedCodec MakeCodec(std::string_view text, const RoundingOptions& rounding,
                      std::span<const Option> keys) {
  return Make(text, 1, rounding, keys);
}

SharedCodec MakeInner(CodecWords& words, std::string_view otherwise,
                      const RoundingOptions& rounding) {
  const std::string inner = words.Rest();
  return Make(inner.empty() ? otherwise : inner, words.depth() + 1, rounding);
}

}  // namespace cpd
