// SPDX-License-Identifier: Apache-2.0
//
// Tests that GemmByBlas on the CPU agrees with sums in binary64, within the error bound that holds
// for any order of summation.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpd/backend/blas.h"
#include "cpd/base/parallel.h"
#include "cpd/ops/gemm.h"
#include "cpd/spec/error.h"
#include "tests/testing/gemm.h"

namespace cpd {
namespace {

using testing::Layout;
using testing::Shape;
using testing::Tensor;

class Blas : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CpuBlas().empty()) GTEST_SKIP() << "no CPU BLAS";
  }

  Tensor Make(const Shape& shape, Layout layout = Layout::contiguous) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(testing::count_of(shape)));
    for (float& x : values) x = normal(bits_);
    return {shape, values, layout};
  }

 private:
  std::mt19937_64 bits_{7};
};

struct Case {
  const Tensor& a;
  const Tensor& b;
  const Tensor* c = nullptr;
  Layout out = Layout::contiguous;
};

/// Compares a product with sums in binary64. In any order, fused or not, the error of a sum of n
/// products is at most (n + 1) u times the sum of magnitudes, to first order (Higham 2002, section
/// 3.1). Here u = 2^-24.
::testing::AssertionResult blas_matches(const Case& x) {
  const testing::GemmCase shapes{x.a, x.b, x.c};
  const Shape shape = testing::out_shape(shapes);
  Tensor out(shape, std::vector<float>(static_cast<std::size_t>(testing::count_of(shape)), -7.0F),
             x.out);
  TensorView addend;
  if (x.c != nullptr) addend = x.c->view();
  GemmByBlas(x.a.view(), x.b.view(), {}, out.view(), x.c != nullptr ? &addend : nullptr);
  if (!out.gaps_untouched()) {
    return ::testing::AssertionFailure() << "wrote between out's elements";
  }
  const std::vector<float> got = out.read();
  const auto rows = static_cast<std::size_t>(shape[shape.size() - 2]);
  const auto columns = static_cast<std::size_t>(shape.back());
  const auto depth = static_cast<std::size_t>(x.a.shape().back());
  const Shape batch(shape.begin(), shape.end() - 2);
  const Shape batch_a(x.a.shape().begin(), x.a.shape().end() - 2);
  const Shape batch_b(x.b.shape().begin(), x.b.shape().end() - 2);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t matrix = i / columns / rows;
    const std::size_t row =
        testing::broadcast_index(matrix, batch, batch_a) * rows + i / columns % rows;
    const std::size_t first = testing::broadcast_index(matrix, batch, batch_b) * depth;
    double sum =
        x.c == nullptr ? 0.0 : x.c->values()[testing::broadcast_index(i, shape, x.c->shape())];
    double magnitude = std::fabs(sum);
    for (std::size_t k = 0; k < depth; ++k) {
      const double term =
          double{x.a.values()[row * depth + k]} * x.b.values()[(first + k) * columns + i % columns];
      sum += term;
      magnitude += std::fabs(term);
    }
    const double bound = static_cast<double>(depth + 2) * 0x1p-24 * magnitude;
    if (!(std::fabs(got[i] - sum) <= bound)) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << got[i] << ", not within " << bound << " of " << sum;
    }
  }
  return ::testing::AssertionSuccess();
}

TEST_F(Blas, Shapes) {
  for (const std::int64_t m : {1, 2, 7, 64, 129}) {
    for (const std::int64_t n : {1, 3, 31, 65}) {
      for (const std::int64_t k : {0, 1, 5, 64, 300}) {
        const Tensor a = Make({m, k});
        const Tensor b = Make({k, n});
        const Tensor c = Make({m, n});
        ASSERT_TRUE(blas_matches({a, b})) << m << " x " << k << " x " << n;
        ASSERT_TRUE(blas_matches({a, b, &c})) << m << " x " << k << " x " << n << ", c";
      }
    }
  }
}

TEST_F(Blas, Layouts) {
  for (const Layout a : testing::kLayouts) {
    for (const Layout b : testing::kLayouts) {
      for (const Layout out : testing::kLayouts) {
        const Tensor x = Make({2, 17, 23}, a);
        const Tensor y = Make({2, 23, 9}, b);
        const Tensor c = Make({2, 17, 9}, a);
        ASSERT_TRUE(blas_matches({x, y, nullptr, out}));
        ASSERT_TRUE(blas_matches({x, y, &c, out}));
      }
    }
  }
  const Tensor ones = Tensor::broadcast({4, 6}, 1.0F);
  const Tensor y = Make({6, 5});
  EXPECT_TRUE(blas_matches({ones, y}));
}

TEST_F(Blas, BatchesAndAddendsBroadcast) {
  struct Shapes {
    Shape a, b, c;
  };
  const std::vector<Shapes> cases = {
      {{3, 5, 7}, {7, 4}, {4}},
      {{5, 7}, {3, 7, 4}, {5, 1}},
      {{2, 1, 5, 7}, {3, 7, 4}, {1, 3, 1, 4}},
      {{2, 3, 1, 7}, {7, 4}, {2, 3, 1, 4}},
      {{4, 1, 3, 9, 2}, {2, 1, 2, 33}, {1}},
      {{3, 5, 0}, {3, 0, 4}, {3, 1, 4}},
      {{0, 5, 7}, {7, 4}, {4}},
      {{3, 0, 7}, {7, 4}, {4}},
  };
  for (const Shapes& shapes : cases) {
    for (const Layout layout : testing::kLayouts) {
      const Tensor a = Make(shapes.a, layout);
      const Tensor b = Make(shapes.b, layout);
      const Tensor c = Make(shapes.c, layout);
      EXPECT_TRUE(blas_matches({a, b, &c}));
      EXPECT_TRUE(blas_matches({a, b}));
    }
  }
}

TEST_F(Blas, SpecialValuesAreIeees) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Tensor a({3, 2}, {kInf, 1.0F, kInf, -kInf, 0x1p100F, 0x1p-100F});
  const Tensor b({2, 1}, {1.0F, 1.0F});
  Tensor out({3, 1}, {7.0F, 7.0F, 7.0F});
  GemmByBlas(a.view(), b.view(), {}, out.view());
  EXPECT_EQ(out.read()[0], kInf);
  EXPECT_TRUE(std::isnan(out.read()[1]));
  EXPECT_EQ(out.read()[2], 0x1p100F);
}

/// Returns a function of the OpenBLAS library that CPD has loaded; null if there is none.
template <class Function>
Function* function_of_openblas(const char* name) {
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

TEST_F(Blas, SizesThatItsIntegersDoNotHold) {
  auto* const config = function_of_openblas<const char*()>("openblas_get_config");
  if (config == nullptr || std::string(config()).find("USE64BITINT") != std::string::npos) {
    GTEST_SKIP() << "not OpenBLAS with integers of 32 bits";
  }
  constexpr std::int64_t kMany = (std::int64_t{1} << 32) + 2;  // 2 in 32 bits
  std::array<float, 16> x{};
  std::array<float, 16> y{};
  const auto refuses = [&](const char* what, const blas::Matrix& a, const blas::Matrix& b,
                           const blas::Matrix& out) {
    try {
      blas::Cpu().Multiply(a, b, out, false);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      const std::string text = "this BLAS takes " + std::string(what) + " up to 2147483647, got ";
      EXPECT_EQ(std::string(error.what()).substr(0, text.size()), text);
    }
  };
  float* const from = x.data();
  float* const to = y.data();
  refuses("terms", {from, 1, kMany, kMany, 1}, {from, kMany, 1, 1, 1}, {to, 1, 1, 1, 1});
  refuses("rows", {from, kMany, 2, 2, 1}, {from, 2, 2, 2, 1}, {to, kMany, 2, 2, 1});
  refuses("columns", {from, 2, 2, 2, 1}, {from, 2, kMany, kMany, 1}, {to, 2, kMany, kMany, 1});
  refuses("strides", {from, 2, 2, kMany, 1}, {from, 2, 2, 2, 1}, {to, 2, 2, 2, 1});
}

/// A product runs on MaxThreads() threads, and then restores the number of threads that the program
/// had set in OpenBLAS.
TEST_F(Blas, TheNumberOfThreadsIsSetBack) {
  auto* const get = function_of_openblas<int()>("openblas_get_num_threads");
  auto* const set = function_of_openblas<void(int)>("openblas_set_num_threads");
  if (get == nullptr || set == nullptr) GTEST_SKIP() << "not OpenBLAS";
  const Tensor a = Make({40, 50});
  const Tensor b = Make({50, 30});
  const int before = get();
  for (const int threads : {1, 2, 3}) {
    set(threads);
    const int chosen = get();
    EXPECT_TRUE(blas_matches({a, b}));
    EXPECT_EQ(get(), chosen) << "of " << threads << ", at most " << MaxThreads();
  }
  set(before);
}

TEST_F(Blas, NamesTheLibrary) {
  EXPECT_NE(CpuBlas().find("OpenBLAS"), std::string_view::npos) << CpuBlas();
}

template <class Kind = Error>
void expect_error(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << what;
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

TEST(BlasErrors, AccumulatorsThatNoBlasHas) {
  const Tensor a({2, 3}, std::vector<float>(6, 1.0F));
  const Tensor b({3, 2}, std::vector<float>(6, 1.0F));
  const Tensor out({2, 2}, std::vector<float>(4, 7.0F));
  std::vector<Accumulator> refused(6);
  refused[0].format = ParseFormat("bf16");
  refused[1].scheme = Scheme::kahan;
  refused[2].rounding.mode = Rounding::toward_zero;
  refused[3].rounding.overflow = Overflow::saturate;
  refused[4].product = ParseFormat("bf16");
  refused[5].scheme = Scheme::chunked;
  for (const Accumulator& accumulator : refused) {
    expect_error("a BLAS has one accumulator: fp32, sequential",
                 [&] { GemmByBlas(a.view(), b.view(), accumulator, out.view()); });
  }
  EXPECT_EQ(out.read(), std::vector<float>(4, 7.0F));
}

TEST(BlasErrors, TypesAndShapes) {
  const Tensor a({2, 3}, std::vector<float>(6, 1.0F));
  const Tensor b({3, 2}, std::vector<float>(6, 1.0F));
  const Tensor half({3, 2}, std::vector<float>(6, 1.0F), Layout::contiguous, DType::f16);
  const Tensor wide({3, 4}, std::vector<float>(12, 1.0F));
  const Tensor row({3}, std::vector<float>(3, 1.0F));
  const Tensor out({2, 2}, std::vector<float>(4, 7.0F));
  const auto with = [&](const Tensor& x, const Tensor& y, const Tensor* c = nullptr) {
    return [&x, &y, c, &out] {
      TensorView addend;
      if (c != nullptr) addend = c->view();
      GemmByBlas(x.view(), y.view(), {}, out.view(), c != nullptr ? &addend : nullptr);
    };
  };
  expect_error("a BLAS takes fp32, got b in fp16", with(a, half));
  expect_error("a must be … x M x K, b … x K x N and out … x M x N, got a (2, 3), b (3, 4)",
               with(a, wide));
  expect_error("at least two dimensions", with(a, row));
  expect_error("c must broadcast to out, got c (3)", with(a, b, &row));
  EXPECT_EQ(out.read(), std::vector<float>(4, 7.0F));
}

TEST(BlasErrors, OutInAnInputsMemory) {
  const Tensor x({2, 2}, std::vector<float>(4, 1.0F));
  const Tensor y({2, 2}, std::vector<float>(4, 1.0F));
  const TensorView c = x.view();
  expect_error("out must lie apart from a", [&] { GemmByBlas(x.view(), y.view(), {}, x.view()); });
  expect_error("out must lie apart from b", [&] { GemmByBlas(y.view(), x.view(), {}, x.view()); });
  expect_error("out must lie apart from c",
               [&] { GemmByBlas(y.view(), y.view(), {}, x.view(), &c); });
  EXPECT_EQ(x.read(), std::vector<float>(4, 1.0F));
}

// A missing BLAS library is a MachineError, since the arguments are valid. The error's text names
// the package to install.
TEST(BlasErrors, ALibraryThatIsNotThere) {
  if (CpuBlas().empty()) {
    expect_error<MachineError>("OpenBLAS; Debian: libopenblas", [] { blas::Cpu(); });
    return;
  }
  expect_error<MachineError>("the BLAS cannot be loaded (OpenBLAS; Debian: libopenblas0)",
                             [] { blas::Library("libno_such_blas.so.0"); });
  expect_error<MachineError>("it has no cblas_sgemm", [] { blas::Library("libc.so.6"); });
}

}  // namespace
}  // namespace cpd
