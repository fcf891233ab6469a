// SPDX-License-Identifier: Apache-2.0
//
// Tests that every fast path of the GPU kernels gives the bits of the scalar kernels. Where a fast
// path is switched off, the general kernel runs and must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/base/fast_paths.h"
#include "cpd/comm/transport/local.h"
#include "cpd/comm/virtual.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"
#include "tests/testing/device_transport.h"
#include "tests/testing/devices.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/formats.h"
#include "tests/testing/ranks.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::Copies;
using Bytes = std::vector<std::uint8_t>;
using Shape = std::vector<std::int64_t>;
using On = const testing::Accelerator*;  // null: the CPU

/// A call that takes a fast path. run(device) returns all bytes that the call writes.
struct Call {
  std::string path;     ///< in paths.def
  std::string kernel;   ///< that the path queues, and no other
  std::string instead;  ///< a kernel that the call queues without the path, where one is its own
  std::string about;
  std::function<Bytes(On)> run;
};

/// Returns numbers of many binades, some of them zero. Unless `finite` is true, some are Inf or
/// NaN.
std::vector<float> Values(std::int64_t n, bool finite = true) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto word = static_cast<std::uint32_t>(i * 2654435761U + 12345U);
    x[i] =
        std::ldexp(static_cast<float>(word % 4001) - 2000, static_cast<int>(word >> 16) % 21 - 16);
    if (i % 23 == 5) x[i] = -0.0F;
    if (i % 101 == 7) x[i] = 0x1p-140F;
    if (!finite && i % 307 == 30) x[i] = i % 2 == 0 ? INFINITY : std::nanf("");
  }
  return x;
}

std::int64_t CountOf(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

RoundingOptions Options(Rounding mode) {
  RoundingOptions options;
  options.mode = mode;
  options.overflow = Overflow::saturate;
  options.random_bits = 7;
  return options;
}

/// Returns the bytes of the values.
Bytes BytesOf(const std::vector<float>& x) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(x.data());
  return {bytes, bytes + 4 * x.size()};
}

/// Returns the bytes that the function write(there, out) writes to `out`.
template <class Write>
Bytes Written(On device, const Shape& shape, Write write) {
  Copies there(device);
  const std::vector<float> values(static_cast<std::size_t>(CountOf(shape)), 7.0F);
  const TensorView out = View(values.data(), DType::f32, shape);
  write(there, there(out));
  there.Read(out);
  return BytesOf(values);
}

// --- single operations and sums ------------------------------------------------------------------

void AddArithmetic(std::vector<Call>& calls) {
  const std::string path = "packed_arithmetic";
  constexpr std::int64_t n = 4099;
  for (const char* text : {"e4m3", "bf16"}) {
    const Format format = ParseFormat(text);
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      const auto add = [&](const char* name, auto operate) {
        calls.push_back({path, "operate_all_packs", "operate_elements",
                         std::string(name) + " " + text + " " + ToString(mode), [=](On device) {
                           const std::vector<float> x = Values(n, false);
                           const std::vector<float> y(x.rbegin(), x.rend());
                           return Written(device, {n}, [&](Copies& there, const TensorView& out) {
                             operate(there(View(x)), there(View(y)), format, Options(mode), out);
                           });
                         }});
      };
      using View = const TensorView&;
      using Rule = const RoundingOptions&;
      add("add", [](View x, View y, const Format& f, Rule o, View out) {
        Add(x, y, f, o, out, testing::kKey);
      });
      add("mul", [](View x, View y, const Format& f, Rule o, View out) {
        Mul(x, y, f, o, out, testing::kKey);
      });
      add("fma", [](View x, View y, const Format& f, Rule o, View out) {
        Fma(x, y, y, f, o, out, testing::kKey);
      });
      add("div", [](View x, View y, const Format& f, Rule o, View out) {
        Div(x, y, f, o, out, testing::kKey);
      });
      add("sqrt", [](View x, View, const Format& f, Rule o, View out) {
        Sqrt(x, f, o, out, testing::kKey);
      });
    }
  }
}

void AddSums(std::vector<Call>& calls) {
  for (const char* text : {"fp32 sequential", "e4m3 sequential", "e4m3 kahan", "e4m3 pairwise",
                           "e4m3 sequential rounding=stochastic"}) {
    calls.push_back({"sum_rows", "sum_rows", "sum_each", text, [=](On device) {
                       const std::vector<float> x = Values(65 * 131, false);
                       return Written(device, {65}, [&](Copies& there, const TensorView& out) {
                         Sum(there(View(x.data(), DType::f32, Shape{65, 131})), 1,
                             ParseAccumulator(text), out, testing::kKey);
                       });
                     }});
  }
}

// --- ranks ---------------------------------------------------------------------------------------

testing::Ranks SmallRanks(int world, std::int64_t n) {
  testing::Ranks ranks;
  for (int r = 0; r < world; ++r) {
    std::vector<float> x = Values(n);
    for (float& value : x) value = std::fmod(value * static_cast<float>(r + 1), 0.25F);
    ranks.push_back({std::move(x)});
  }
  return ranks;
}

void AddFolds(std::vector<Call>& calls) {
  for (const char* format : {"e3m0", "e2m1", "e4m3", "e5m10", "bf16", "fp32"}) {
    for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
      for (const bool grouped : {false, true}) {
        Reduce spec;
        spec.format = ParseFormat(format);
        spec.accumulator = {.format = ParseFormat("e6m9"), .scheme = scheme};
        spec.result = spec.accumulator.format;
        if (grouped) {
          spec.group_size = 2;
          spec.order = Order::ring;
          spec.exchange = Exchange::hierarchical;
        }
        const std::string about =
            std::string(format) + " " + ToString(spec.accumulator) + (grouped ? " in groups" : "");
        calls.push_back({"short_fold", "short_fold", "fold", about, [=](On device) {
                           Bytes all;
                           for (const auto& outcome : testing::all_reduce(
                                    LocalTransports(3), device, spec, SmallRanks(3, 1099),
                                    testing::options_of(50000))) {
                             const Bytes out = BytesOf(outcome.out[0]);
                             all.insert(all.end(), out.begin(), out.end());
                           }
                           return all;
                         }});
      }
    }
  }
}

void AddVirtualRanks(std::vector<Call>& calls) {
  for (const char* accumulator : {"e6m9 sequential", "e4m3 kahan", "fp32 sequential"}) {
    for (const bool stays : {false, true}) {
      Reduce spec;
      spec.format = ParseFormat("e4m3");
      spec.accumulator = ParseAccumulator(accumulator);
      spec.result = spec.accumulator.format;
      calls.push_back(
          {"virtual_fold", "fold_short_of", "take_terms_of",
           std::string(accumulator) + (stays ? ", layers stay" : ""), [=](On device) {
             constexpr int kWorld = 6;
             const testing::Ranks ranks = SmallRanks(kWorld, 2100);
             const Shape sizes{2100};
             VirtualReduce reduce(spec, kWorld, sizes, {.seed = 5});
             Copies there(device);
             for (const int r : reduce.schedule()) {
               reduce.Contribute(0, there(View(ranks[static_cast<std::size_t>(r)][0])), stays);
               reduce.EndRank();
             }
             Bytes out = Written(device, sizes,
                                 [&](Copies&, const TensorView& to) { reduce.Result(0, to); });
             out.push_back(reduce.report(0).underflowed > 0);
             return out;
           }});
    }
  }
}

// --- scaled formats ------------------------------------------------------------------------------

const std::vector<const char*> kScaled = {"mxfp8", "fp8-block", "nvfp4"};  // blocks of 32, 128, 16
const Shape kMatrix{160, 256};

/// The result of encoding: the elements' codes, the scales of blocks, and the outer scales.
struct Codes {
  Bytes packed, scales, outer;
};
Codes Encoded(On device, const Scaled& scaled, int axis) {
  Copies there(device);
  const std::vector<float> x = Values(CountOf(kMatrix));
  const ScaleCounts counts = CountScales(scaled, kMatrix, axis);
  const auto bytes = [](const Format& format, std::int64_t n) {
    return Bytes(static_cast<std::size_t>(PackedBytes(format, n)), 9);
  };
  Codes codes{bytes(scaled.element, CountOf(kMatrix)), bytes(scaled.scale, counts.blocks),
              scaled.tensor_scale ? bytes(*scaled.tensor_scale, counts.tensor) : Bytes()};
  const TensorView outer = testing::view_of(codes.outer);
  Encode(there(View(x.data(), DType::f32, kMatrix)), scaled, axis, Options(Rounding::nearest_even),
         there(testing::view_of(codes.packed)), there(testing::view_of(codes.scales)),
         scaled.tensor_scale ? there(&outer) : nullptr, {}, testing::kKey);
  for (const Bytes* written : {&codes.packed, &codes.scales, &codes.outer}) {
    there.Read(written->data());
  }
  return codes;
}

Bytes CastAlong(On device, const Scaled& scaled, int axis, Rounding mode) {
  const std::vector<float> x = Values(CountOf(kMatrix), mode == Rounding::stochastic);
  return Written(device, kMatrix, [&](Copies& there, const TensorView& out) {
    Cast(there(View(x.data(), DType::f32, kMatrix)), scaled, axis, Options(mode), out, {},
         testing::kKey);
  });
}

void AddScaled(std::vector<Call>& calls) {
  for (const char* text : kScaled) {
    const Scaled scaled = ParseScaled(text);
    const auto add = [&](const char* path, const char* kernel, const char* instead, auto run) {
      calls.push_back({path, kernel, instead, text, run});
    };
    add("square_casts", "cast_squares", "cast_short_blocks", [=](On device) {
      const std::vector<float> x = Values(CountOf(kMatrix), false);
      Bytes columns;
      Bytes all = Written(device, kMatrix, [&](Copies& there, const TensorView& rows) {
        columns = Written(device, kMatrix, [&](Copies&, const TensorView& out) {
          CastBoth(there(View(x.data(), DType::f32, kMatrix)), scaled, {-1, -2},
                   Options(Rounding::nearest_even), rows, out, testing::kKey);
        });
      });
      all.insert(all.end(), columns.begin(), columns.end());
      return all;
    });
    add("column_casts", "cast_columns", "cast_elements",
        [=](On device) { return CastAlong(device, scaled, 0, Rounding::nearest_even); });
    add("column_forms", "form_columns", "find_largest",
        [=](On device) { return CastAlong(device, scaled, 0, Rounding::stochastic); });
    add("stochastic_columns", "cast_stochastic_columns", "cast_elements",
        [=](On device) { return CastAlong(device, scaled, 0, Rounding::stochastic); });
    for (const auto& [path, kernel, instead, axis] :
         {std::tuple{"column_codes", "encode_columns", "", 0},
          {"neighbor_codes", "encode_short_blocks", "", 1}}) {
      add(path, kernel, instead, [scaled, axis = axis](On device) {
        const Codes codes = Encoded(device, scaled, axis);
        Bytes all = codes.packed;
        all.insert(all.end(), codes.scales.begin(), codes.scales.end());
        all.insert(all.end(), codes.outer.begin(), codes.outer.end());
        return all;
      });
    }
    add("column_decodes", "decode_columns", "", [=](On device) {
      const Codes codes = Encoded(nullptr, scaled, 0);
      const TensorView outer = testing::view_of(codes.outer);
      return Written(device, kMatrix, [&](Copies& there, const TensorView& out) {
        Decode(there(testing::view_of(codes.packed)), scaled, 0,
               there(testing::view_of(codes.scales)), scaled.tensor_scale ? there(&outer) : nullptr,
               out);
      });
    });
  }
}

// --- all -----------------------------------------------------------------------------------------

std::vector<Call> AllCalls() {
  std::vector<Call> calls;
  AddArithmetic(calls);
  AddSums(calls);
  AddFolds(calls);
  AddVirtualRanks(calls);
  AddScaled(calls);
  return calls;
}

class FastKernels : public testing::RanksOnDevice {
 protected:
  void TearDown() override {
    SetFastPaths({});
    RanksOnDevice::TearDown();
  }
  /// Expects that a call has the expected bits while only the fast paths in `paths` are on. On a
  /// device that reports kernel names, expects also that the call queues the path's kernel if
  /// `is_taken`, and otherwise another kernel.
  void ExpectBits(const Call& call, FastPaths paths, const Bytes& expected, bool is_taken) const {
    SetFastPaths(paths);
    static_cast<void>(testing::queued_kernels());
    EXPECT_EQ(expected, call.run(device())) << call.path << ": " << call.about;
    const auto names = testing::queued_kernels();
    if (!names || on_host()) return;
    EXPECT_EQ(std::ranges::count(*names, call.kernel) > 0, is_taken)
        << call.path << ": " << call.about;
    if (call.instead.empty()) return;
    EXPECT_EQ(std::ranges::count(*names, call.instead) > 0, !is_taken)
        << call.path << ": " << call.about;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, FastKernels, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

/// Tests that each call takes its fast path, and that its bits do not change if this path or all
/// paths are switched off. A call whose path is not listed in paths.def must take the general
/// kernels.
TEST_P(FastKernels, SameBitsWithoutAPath) {
  for (const Call& call : AllCalls()) {
    const Bytes expected = OnScalar([&] { return call.run(nullptr); });
    const auto* const end = std::end(kFastPathNames);
    const auto* const name = std::find(std::begin(kFastPathNames), end, call.path);
    ExpectBits(call, {}, expected, name != end);
    if (name == end) continue;
    const auto path = static_cast<FastPath>(name - std::begin(kFastPathNames));
    ExpectBits(call, FastPaths().without(path), expected, false);
    ExpectBits(call, FastPaths::none(), expected, false);
  }
}

TEST(FastKernelCalls, EveryPathHasACall) {
  const std::vector<Call> calls = AllCalls();
  for (const char* name : {
#define CPD_FAST_CUDA(name) #name,
#include "cpd/numeric/fast/paths.def"
       }) {
    EXPECT_TRUE(std::ranges::any_of(calls, [&](const Call& call) { return call.path == name; }))
        << name;
  }
}

}  // namespace
}  // namespace cpd
