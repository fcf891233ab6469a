// SPDX-License-Identifier: Apache-2.0
//
// Tests that Explain reports the kernels and paths that a call uses. The tests count the calls of
// the kernels, and the tiles that take each path of a product. Explain itself must run nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/error.h"
#include "cpd/spec/scaled.h"
#include "tests/testing/fast.h"
#include "tests/testing/gemm.h"
#include "tests/testing/traced_kernels.h"

namespace cpd {

#ifdef CPD_ISA_AVX2
namespace traced {
std::uint64_t g_calls = 0;
void took_path(FastPath path) { ++testing::tiles_of_path[static_cast<std::size_t>(path)]; }
}  // namespace traced
#endif

namespace {

using testing::path_named;

using testing::Layout;
using testing::Tensor;
using testing::TracedKernels;

Tensor random_tensor(testing::Shape shape, Layout layout = Layout::contiguous,
                     DType dtype = DType::f32) {
  std::mt19937 engine(7);
  std::vector<float> values(static_cast<std::size_t>(testing::count_of(shape)));
  for (float& value : values) value = static_cast<float>(engine() % 15) / 8 - 0.875F;
  return {std::move(shape), std::move(values), layout, dtype};
}

/// Returns what Explain reports of a call that runs a single operation.
Explanation step_of(const std::function<void()>& call, int gpu = -1) {
  const auto steps = Explain(call, gpu);
  EXPECT_EQ(steps.size(), 1U);
  return steps.empty() ? Explanation{} : steps.back();
}

const KernelTable& fastest() { return *AvailableKernels().back(); }

/// Expects that Explain calls no kernel. Expects also that the call itself then uses the kernel
/// that the explanation names, and no other kernels except `helpers`.
Explanation expect_explained(const std::function<void()>& call,
                             const std::set<std::string>& helpers = {}) {
  const TracedKernels kernels(fastest());
  const Explanation step = step_of(call);
  EXPECT_TRUE(TracedKernels::called().empty());
  EXPECT_EQ(step.backend, fastest().name);
  TracedKernels::forget();
  call();
  std::set<std::string> called = TracedKernels::called();
  for (const std::string& helper : helpers) {
    if (helper != step.kernel) called.erase(helper);
  }
  EXPECT_EQ(called, std::set<std::string>{step.kernel});
  return step;
}

// ---- casts --------------------------------------------------------------------------------------

Explanation cast_of(const std::string& to, Layout layout, DType dtype) {
  const Tensor x = random_tensor({300, 40}, layout, dtype);
  const Tensor y = random_tensor({300, 40}, Layout::contiguous, dtype);
  const CastSpec spec = ParseCastSpec(to);
  std::set<std::string> conversions;
  if (dtype == DType::f16) conversions = {"decode", "encode"};
  return expect_explained(
      [&] { Cast(x.view(), std::get<Format>(spec.format), spec.rounding, y.view()); }, conversions);
}

TEST(Explain, CastsRunTheKernelsThatItNames) {
  EXPECT_EQ(cast_of("e4m3", Layout::contiguous, DType::f32).kernel, "cast");
  EXPECT_EQ(cast_of("e4m3", Layout::gaps, DType::f32).kernel, "cast");
  EXPECT_EQ(cast_of("e4m3", Layout::transposed, DType::f32).kernel, "cast");
  EXPECT_EQ(cast_of("e4m3", Layout::contiguous, DType::bf16).kernel, "cast");
  EXPECT_EQ(cast_of("e4m3", Layout::contiguous, DType::f16).kernel, "cast");
}

TEST(Explain, PathsOfCastsAreTheirForms) {
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"e4m3", "addition"},
      {"e4m3 rounding=up", "addition"},
      {"e4m3fnuz", "addition"},
      {"bf16", "in_place"},
      {"bf16 rounding=stochastic", "in_place"},
      {"e4m3 rounding=stochastic", "units"},
      {"int8", "integer"},
      {"e4m3 rounding=to_odd", "general"},
      {"e4m3 rounding=stochastic variant=B", "general"},
      {"e4m3:nosub", "general"},
      {"fp16 rounding=stochastic", "general"},
  };
  for (const auto& [to, path] : paths) {
    const Explanation step = cast_of(to, Layout::contiguous, DType::f32);
    EXPECT_EQ(step.path, path) << to;
    EXPECT_EQ(step.why.empty(), path != "general") << to << ": " << step.why;
  }
}

TEST(Explain, Binary64AndWideFormats) {
  std::vector<double> x(100), y(100);
  const TensorView from = View(x.data(), DType::f64, 100), to = View(y.data(), DType::f64, 100);
  const Explanation step = expect_explained([&] { Cast(from, ParseFormat("e4m3"), {}, to); });
  EXPECT_EQ(step.kernel, "cast");
  EXPECT_EQ(step.path, "general");
  const Explanation wide = step_of([&] { Cast(from, ParseFormat("e11m52"), {}, to); });
  EXPECT_EQ(wide.backend, "portable");
  EXPECT_EQ(wide.kernel, "soft_float");
  EXPECT_EQ(wide.path, "integers");
}

TEST(Explain, CodesAndArithmetic) {
  const Tensor x = random_tensor({1000}), y = random_tensor({1000});
  const Format format = ParseFormat("e4m3");
  std::vector<std::uint8_t> codes(1000);
  const TensorView packed = View(codes.data(), DType::u8, 1000);
  EXPECT_EQ(expect_explained([&] { Encode(x.view(), format, {}, packed); }).function, "encode");
  EXPECT_EQ(expect_explained([&] { Decode(packed, format, y.view()); }).path, "codes");
  EXPECT_EQ(expect_explained([&] { Add(x.view(), y.view(), format, {}, y.view()); }).function,
            "add");
  EXPECT_EQ(expect_explained([&] { Sqrt(x.view(), format, {}, y.view()); }).function, "sqrt");
  EXPECT_EQ(expect_explained([&] { Div(x.view(), y.view(), format, {}, y.view()); }).kernel,
            "arithmetic");
}

TEST(Explain, Transforms) {
  const Tensor x = random_tensor({64, 64}), y = random_tensor({64, 64});
  const Hadamard transform = ParseHadamard("hadamard16");
  EXPECT_EQ(expect_explained([&] { Transform(x.view(), transform, 1, false, y.view()); }).path,
            "butterflies");
}

// ---- scaled formats -----------------------------------------------------------------------------

TEST(Explain, ScaledCasts) {
  const std::vector<std::tuple<std::string, DType, std::string, std::string>> cases = {
      {"mxfp8", DType::f32, "round_blocks", "multiply"},
      {"mxfp8", DType::bf16, "cast_power_blocks", "powers_of_two"},
      {"nvfp4", DType::f32, "round_blocks", "multiply"},
  };
  for (const auto& [text, dtype, kernel, path] : cases) {
    const Tensor x = random_tensor({64, 256}, Layout::contiguous, dtype);
    const Tensor y = random_tensor({64, 256}, Layout::contiguous, dtype);
    const Scaled scaled = ParseScaled(text);
    const RoundingOptions saturating{.overflow = Overflow::saturate};
    const auto call = [&] { Cast(x.view(), scaled, 1, saturating, y.view()); };
    const Explanation step = expect_explained(call, {"round_blocks", "cast"});
    EXPECT_EQ(step.kernel, kernel) << text;
    EXPECT_EQ(step.path, path) << text << ": " << step.why;
  }
}

// ---- sums and products --------------------------------------------------------------------------

TEST(Explain, Sums) {
  const Tensor x = random_tensor({50, 600}), y = random_tensor({600});
  const std::vector<std::pair<std::string, std::string>> paths = {
      {"e4m3 sequential", "veltkamp_exact"},
      {"fp32 sequential", "binary32"},
      {"e4m3 sequential rounding=stochastic", "stochastic"},
      {"e4m3 sequential rounding=up", "general"},
  };
  for (const auto& [text, path] : paths) {
    const Accumulator accumulator = ParseAccumulator(text);
    const Explanation step =
        expect_explained([&] { Sum(x.view(), 0, accumulator, y.view()); }, {"cast"});
    EXPECT_EQ(step.kernel, "fold");
    EXPECT_EQ(step.path, fastest().lanes > 1 ? path : "general") << text;
  }
}

struct Product {
  std::string accumulator, kernel, path;
  FastPath taken = FastPath::none;
};
const std::vector<Product>& products() {
  static const std::vector<Product> all = {
      {"e4m3 sequential", "gemm", "veltkamp", path_named("veltkamp")},
      {"e4m3 chunked chunk=8", "gemm", "veltkamp", path_named("veltkamp")},
      {"e4m3 sequential product=exact", "gemm", "veltkamp_exact", path_named("veltkamp_exact")},
      {"e4m3 kahan", "gemm", "veltkamp_kahan", path_named("veltkamp")},
      {"e4m3 pairwise", "gemm", "veltkamp_pairwise", path_named("veltkamp")},
      {"fp32 sequential", "gemm", "binary32", path_named("binary32")},
      {"fp32 kahan", "gemm", "binary32_kahan", path_named("binary32")},
      {"fp32 pairwise", "gemm", "binary32_pairwise", path_named("binary32")},
      {"e4m3 sequential rounding=stochastic", "gemm", "stochastic", path_named("stochastic")},
      {"e4m3 sequential rounding=up", "gemm", "general", FastPath::none},
      {"e4m3 kahan product=exact", "gemm", "general", FastPath::none},
      {"fp32 sequential overflow=saturate", "gemm", "general", FastPath::none},
      {"h100-fp16", "block_fma", "unit_aligned", FastPath::none},
      {"int32", "fixed", "integer", FastPath::none},
  };
  return all;
}

/// Expects that the explanation names the product's path. Scalar kernels have no fast paths and
/// must report `general`.
void expect_path(const std::string& found, const Product& product, const KernelTable& kernels) {
  if (kernels.lanes == 1 && product.taken != FastPath::none) {
    EXPECT_EQ(found, "general") << product.accumulator;
  } else {
    EXPECT_EQ(found, product.path) << product.accumulator;
  }
}

TEST(Explain, ProductsRunTheKernelsThatItNames) {
  const Tensor a = random_tensor({40, 70}), b = random_tensor({70, 50}),
               c = random_tensor({40, 50});
  for (const Product& product : products()) {
    SCOPED_TRACE(product.accumulator);
    const Accumulator accumulator = ParseAccumulator(product.accumulator);
    const auto call = [&] { Gemm(a.view(), b.view(), accumulator, c.view()); };
    const Explanation step = expect_explained(call, {"fold", "cast"});
    EXPECT_EQ(step.kernel, product.kernel);
    expect_path(step.path, product, fastest());
    EXPECT_EQ(step.tile.size(), 3U);
    const bool is_short = product.taken != FastPath::none && fastest().lanes > 1;
    EXPECT_EQ(step.path == "general", !step.why.empty() && !is_short && product.kernel == "gemm");
  }
}

#ifdef CPD_ISA_AVX2
TEST(Explain, TilesTakeThePathThatItNames) {
  const auto tables = AvailableKernels();
  const auto avx2 = std::ranges::find(tables, std::string("avx2"),
                                      [](const KernelTable* table) { return table->name; });
  if (avx2 == tables.end()) GTEST_SKIP() << "this CPU has no avx2";
  KernelTable table = **avx2;
  table.gemm = traced::gemm;
  table.gemm_path = traced::gemm_path;
  SetKernels(table);
  const Tensor a = random_tensor({40, 70}), b = random_tensor({70, 50}),
               c = random_tensor({40, 50});
  for (const Product& product : products()) {
    if (product.kernel != "gemm") continue;
    SCOPED_TRACE(product.accumulator);
    const Accumulator accumulator = ParseAccumulator(product.accumulator);
    const auto call = [&] { Gemm(a.view(), b.view(), accumulator, c.view()); };
    for (auto& tiles : testing::tiles_of_path) tiles = 0;
    expect_path(step_of(call).path, product, table);
    for (auto& tiles : testing::tiles_of_path) EXPECT_EQ(tiles, 0);
    call();
    for (std::size_t kind = 0; kind < testing::tiles_of_path.size(); ++kind) {
      const bool explained = kind == static_cast<std::size_t>(product.taken);
      EXPECT_EQ(testing::tiles_of_path[kind] > 0, explained) << kind;
    }
  }
  ForceKernels("");
}
#endif

TEST(Explain, GivenIntegersTakeTheGeneralPath) {
  const Tensor a = random_tensor({4, 7}), b = random_tensor({7, 5}), c = random_tensor({4, 5});
  const Accumulator accumulator = ParseAccumulator("e4m3 sequential rounding=stochastic");
  const std::int64_t draws = DrawsOfGemm(accumulator, 7);
  std::vector<std::uint32_t> integers(static_cast<std::size_t>(20 * draws));
  const std::vector<std::int64_t> shape = {4, 5, draws};
  const TensorView random = View(integers.data(), DType::u32, shape);
  const auto call = [&] { Gemm(a.view(), b.view(), accumulator, c.view(), nullptr, {}, &random); };
  const Explanation step = step_of(call);
  EXPECT_EQ(step.path, "general");
  EXPECT_EQ(step.why, "the caller gives the random integers");
}

TEST(Explain, ScalarKernelsHaveNoShortPath) {
  ForceKernels("scalar");
  const Tensor a = random_tensor({4, 7}), b = random_tensor({7, 5}), c = random_tensor({4, 5});
  const Accumulator accumulator = ParseAccumulator("e4m3 sequential");
  const Explanation step = step_of([&] { Gemm(a.view(), b.view(), accumulator, c.view()); });
  ForceKernels("");
  EXPECT_EQ(step.backend, "scalar");
  EXPECT_EQ(step.path, "general");
  EXPECT_EQ(step.why, "kernels of one lane have no fast path");
}

// ---- nothing is computed ------------------------------------------------------------------------

/// Returns a tensor whose address has no memory behind it. Each call gives another address.
TensorView without_memory(std::vector<std::int64_t> shape) {
  TensorView view = View(nullptr, DType::f32, shape);
  static std::int64_t place = std::int64_t{1} << 60;
  place += view.size() * 4;
  view.data = reinterpret_cast<void*>(place - view.size() * 4);
  return view;
}

TEST(Explain, TensorsNeedNoMemory) {
  const std::uint64_t before = Kernels().calls();
  const std::int64_t n = std::int64_t{1} << 20;
  const TensorView x = without_memory({n, n}), y = without_memory({n, n});
  const Explanation cast = step_of([&] { Cast(x, ParseFormat("e4m3"), {}, y); });
  EXPECT_EQ(cast.kernel, "cast");
  EXPECT_EQ(cast.threads, MaxThreads());
  const TensorView out = without_memory({n, n});
  const Accumulator accumulator = ParseAccumulator("e4m3 sequential");
  const Explanation product = step_of([&] { Gemm(x, y, accumulator, out); });
  EXPECT_EQ(product.kernel, "gemm");
  EXPECT_EQ(product.threads, MaxThreads());
  const Scaled scaled = ParseScaled("mxfp8");
  const RoundingOptions saturating{.overflow = Overflow::saturate};
  EXPECT_EQ(step_of([&] { Cast(x, scaled, 1, saturating, y); }).path, "multiply");
  EXPECT_EQ(Kernels().calls(), before);
}

TEST(Explain, SmallLoopsHaveOneThread) {
  const Tensor x = random_tensor({100}), y = random_tensor({100});
  EXPECT_EQ(step_of([&] { Cast(x.view(), ParseFormat("e4m3"), {}, y.view()); }).threads, 1);
}

TEST(Explain, ChecksAreTheCalls) {
  const Tensor x = random_tensor({3}), y = random_tensor({4});
  EXPECT_THROW(Explain([&] { Cast(x.view(), ParseFormat("e4m3"), {}, y.view()); }), Error);
  EXPECT_FALSE(Explains());
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  options.random_bits = 25;
  EXPECT_THROW(Explain([&] { Cast(x.view(), ParseFormat("e4m3"), options, x.view()); }), Error);
}

// ---- a GPU --------------------------------------------------------------------------------------

TEST(Explain, GpusNeedNoGpu) {
  TensorView x = without_memory({256, 256}), y = without_memory({256, 256});
  TensorView out = without_memory({256, 256});
  for (TensorView* view : {&x, &y, &out}) {
    view->device = Device::cuda;
    view->device_index = 1;
  }
  const Explanation cast = step_of([&] { Cast(x, ParseFormat("e4m3"), {}, y); });
  EXPECT_EQ(cast.backend, "cuda:1");
  EXPECT_EQ(cast.kernel, "cast");
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"e6m9 sequential", "multiply_wide", "veltkamp"},
      {"e4m3 sequential", "multiply_halves", "veltkamp_fp16"},
      {"fp32 sequential", "multiply_wide", "binary32"},
      {"e4m3 pairwise", "multiply", "general"},
      {"e4m3 sequential rounding=stochastic", "multiply", "stochastic"},
      {"h100-fp16", "multiply_units", "unit_aligned"},
  };
  for (const auto& [text, kernel, path] : cases) {
    const Accumulator accumulator = ParseAccumulator(text);
    const Explanation step = step_of([&] { Gemm(x, y, accumulator, out); });
    EXPECT_EQ(step.backend, "cuda:1") << text;
    EXPECT_EQ(step.kernel, kernel) << text;
    EXPECT_EQ(step.path, path) << text;
  }
}

}  // namespace
}  // namespace cpd
