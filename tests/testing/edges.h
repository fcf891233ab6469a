// SPDX-License-Identifier: Apache-2.0
//
// The formats at which a plan switches to another computation path (numeric/*_plan.h). Every
// operation in these formats is compared with the oracle, on values that a wrong path would round
// wrongly.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference_gemm.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd::testing {

/// A family of formats: all fields of a format except its bias.
struct Family {
  int exp, man;
  Encoding encoding;
  bool is_signed, subnormals;
};

inline constexpr std::array kRandomBits = {1, 7, 8, 23, 24};

/// Returns the computation paths that the plans of all operations choose for a format. Each number
/// of the list is one choice, so equal lists mean equal paths.
inline std::vector<int> routes_of(const Format& format) {
  std::vector<int> routes;
  const auto push = [&](const RoundingOptions& o) {
    const RoundPlan plan = make_plan(format, o);
    const Accumulator sum{format, Scheme::sequential, o};
    const GemmPlan gemm =
        make_gemm_plan(Scheme::sequential, format, false, format, o, first_draw(o));
    const FoldPlan fold = make_fold_plan(sum, format);
    for (const int fact :
         {static_cast<int>(plan.form), int{plan.wide}, int{plan.scale_in_binary32},
          int{plan.scale_up_in_binary32}, int{plan.scale_down_to_odd}, static_cast<int>(fold.path),
          int{fold.in_binary32}, static_cast<int>(gemm.fast.path), gemm.product_bits,
          int{gemm.sum_in_binary32}}) {
      routes.push_back(fact);
    }
  };
  RoundingOptions o;
  push(o);
  o.mode = Rounding::stochastic;
  for (const int bits : kRandomBits) {
    o.random_bits = bits;
    push(o);
  }
  return routes;
}

/// Returns formats of a family, which differ only in the bias: those with the least and the
/// greatest bias, and both formats of each pair of neighboring biases for which plans choose
/// different computation paths.
inline std::vector<Format> edge_formats(const Family& f) {
  std::vector<Format> all;
  for (int bias = -255; bias <= 255; ++bias) {
    if (is_admissible({f.exp, f.man, bias, f.encoding, f.is_signed, f.subnormals})) {
      all.push_back(MakeFormat(f.exp, f.man, f.encoding, bias, f.is_signed, f.subnormals));
    }
  }
  std::vector<Format> edges;
  std::vector<int> before;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<int> routes = routes_of(all[i]);
    const bool changes = i > 0 && routes != before;
    if (changes && (edges.empty() || edges.back() != all[i - 1])) edges.push_back(all[i - 1]);
    if (i == 0 || changes || i + 1 == all.size()) edges.push_back(all[i]);
    before = std::move(routes);
  }
  return edges;
}

/// Returns the families of formats whose number of mantissa bits is in `mantissas`. Under a
/// sanitizer, returns one family in seven.
inline std::vector<Family> families(std::span<const int> mantissas) {
  std::vector<Family> all;
  for (const Encoding encoding : {Encoding::ieee, Encoding::fn, Encoding::fnuz, Encoding::p3109,
                                  Encoding::p3109finite, Encoding::finite}) {
    for (int exp = 1; exp <= 8; ++exp) {
      for (const int man : mantissas) {
        for (const bool is_signed : {true, false}) {
          for (const bool subnormals : {true, false}) {
            all.push_back({exp, man, encoding, is_signed, subnormals});
          }
        }
      }
    }
  }
  return thinned(std::move(all));
}

/// Returns zeros, infinities, NaN, the ends of binary32, the format's least and greatest values,
/// values that overflow, and the midpoint between each value and the next larger one. Each comes
/// with its neighbors in binary32, and signs alternate.
inline std::vector<float> edge_values(const reference::Spec& spec) {
  std::vector<float> values;
  for (const std::uint32_t bits : {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu,
                                   0x7F800000u, 0x7FC00000u}) {
    values.push_back(from_bits(bits));
    values.push_back(from_bits(bits | 0x80000000u));
  }
  reference::Options truncate;
  truncate.rounding = Rounding::toward_zero;
  truncate.overflow = Overflow::saturate;
  std::uint32_t sign = 0;
  const auto push = [&](const reference::Exact& x) {
    const std::uint32_t bits = bits_of(reference::round(reference::Spec{}, x, truncate));
    for (const std::uint32_t near : {bits == 0 ? 0 : bits - 1, bits, bits + 1}) {
      values.push_back(from_bits(near | sign));
      sign ^= 0x80000000u;
    }
  };
  const std::uint64_t normal = std::uint64_t{1} << spec.man;
  const std::uint64_t top = spec.max_code();
  std::vector<std::uint64_t> codes = {0, 1, normal - 1, normal, normal + 1, top, top + 1, top + 2};
  if (top > 0) codes.push_back(top - 1);
  std::ranges::sort(codes);
  codes.erase(std::ranges::unique(codes).begin(), codes.end());
  for (const std::uint64_t code : codes) {
    const reference::Exact below = reference::grid_value(spec, code);
    push(below);
    reference::Exact middle = add(below, reference::grid_value(spec, code + 1));
    --middle.exponent;
    push(middle);
  }
  return values;
}

/// Compares operations in one format on every backend with the oracle.
class Edge {
 public:
  Edge(const Format& format, const RoundingOptions& o, std::uint32_t turn)
      : format_(format), o_(o), spec_(reference::spec_of(format)), x_(edge_values(spec_)) {
    if (!format.has_nan()) std::erase_if(x_, [](float x) { return x != x; });
    random_.resize(x_.size());
    const std::uint32_t count = 1u << o.random_bits;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      const std::array<std::uint32_t, 3> integers = {0, count - 1, (0x9E3779B9u * turn) % count};
      random_[i] = integers[(i + turn) % 3];
    }
    expected_ = oracle_cast(x_, format, o, &random_);
  }

  /// Checks Cast, Encode and Decode, also with values that are scaled by a power of two.
  bool Casts() const {
    const bool draws = o_.mode == Rounding::stochastic;
    bool good = true;
    for (const std::string& backend : backends()) {
      const WithBackend forced(backend);
      good = Same(run_cast(x_, format_, o_, draws ? &random_ : nullptr), backend, "cast") && good;
      std::vector<std::uint8_t> packed(
          static_cast<std::size_t>(PackedBytes(format_, static_cast<std::int64_t>(x_.size()))));
      const TensorView integers = view_of(random_);
      Encode(view_of(x_), format_, o_, view_of(packed), {}, draws ? &integers : nullptr);
      good = Same(run_decode(packed, format_, x_.size()), backend, "encode, decode") && good;
      if (!draws) good = Scaled(backend) && good;
    }
    return good;
  }

  /// Checks sums of two products, in any rounding mode. `turn` is an index, from which the check
  /// chooses one of four schemes.
  bool Products(std::uint32_t turn) const {
    Accumulator accumulator{format_, static_cast<Scheme>(turn % 4), o_};
    accumulator.exact_products = turn % 3 == 0;
    if (accumulator.scheme == Scheme::chunked) accumulator.chunk = 2;
    const auto n = static_cast<std::int64_t>(x_.size());
    std::vector<float> a;
    for (std::size_t i = 0; i < x_.size(); ++i) {
      a.insert(a.end(), {x_[i], x_[(i + 1 + turn % 5) % x_.size()]});
    }
    const std::vector<float> b = {1.0f, -1.0f, 1.0f, 0.75f};
    std::vector<float> expected;
    for (std::size_t i = 0; i < 2 * x_.size(); ++i) {
      const std::array<float, 2> column = {b[i % 2], b[i % 2 + 2]};
      expected.push_back(
          reference::dot(accumulator, std::span(a).subspan(i / 2 * 2, 2), column, 0.0f, i));
    }
    bool good = true;
    for (const std::string& backend : backends()) {
      const WithBackend forced(backend);
      std::vector<float> got(expected.size());
      const auto view = [](const std::vector<float>& values, std::int64_t rows) {
        return View(values.data(), DType::f32, std::array<std::int64_t, 2>{rows, 2});
      };
      Gemm(view(a, n), view(b, 2), accumulator, view(got, n));
      const auto equal =
          bits_equal(std::span<const float>(expected), std::span<const float>(got), a);
      EXPECT_TRUE(equal) << ToString(accumulator) << ", " << backend << ", "
                         << describe(format_, o_);
      good = good && equal;
    }
    return good;
  }

  /// Checks sums of two and three terms, in a rounding mode that needs no random integers.
  bool Sums(std::uint32_t turn) const {
    bool good = true;
    const auto n = static_cast<std::int64_t>(x_.size());
    std::vector<float> y(x_.rbegin(), x_.rend());
    std::ranges::rotate(y, y.begin() + turn % n);
    std::vector<float> terms = x_;
    terms.insert(terms.end(), y.begin(), y.end());
    terms.insert(terms.end(), x_.begin(), x_.end());
    const std::array<std::int64_t, 2> shape = {3, n};
    const Accumulator accumulator{format_, turn % 2 == 0 ? Scheme::sequential : Scheme::kahan, o_};
    for (const std::string& backend : backends()) {
      const WithBackend forced(backend);
      std::vector<float> got(x_.size());
      const auto check = [&](const char* what, const auto& oracle) {
        std::vector<float> expected(x_.size());
        for (std::size_t i = 0; i < x_.size(); ++i) expected[i] = oracle(i);
        good = Compare(expected, got, backend, what) && good;
      };
      Add(view_of(x_), view_of(y), format_, o_, view_of(got));
      check("add", [&](std::size_t i) { return reference::add(spec_, x_[i], y[i], Options()); });
      Mul(view_of(x_), view_of(y), format_, o_, view_of(got));
      check("mul", [&](std::size_t i) { return reference::mul(spec_, x_[i], y[i], Options()); });
      Sum(View(terms.data(), DType::f32, shape), 0, accumulator, view_of(got));
      check("sum", [&](std::size_t i) {
        const std::array<float, 3> of_i = {x_[i], y[i], x_[i]};
        return accumulator.scheme == Scheme::kahan
                   ? reference::sum_kahan(spec_, of_i, Options())
                   : reference::sum_sequential(spec_, of_i, Options());
      });
    }
    return good;
  }

 private:
  reference::Options Options() const { return oracle_options(o_); }

  bool Compare(const std::vector<float>& expected, const std::vector<float>& got,
               const std::string& backend, const char* what) const {
    const auto equal =
        bits_equal(std::span<const float>(expected), std::span<const float>(got), x_);
    EXPECT_TRUE(equal) << what << ", " << backend << ", " << describe(format_, o_);
    return static_cast<bool>(equal);
  }
  bool Same(const std::vector<float>& got, const std::string& backend, const char* what) const {
    return Compare(expected_, got, backend, what);
  }

  /// Divides each x by 2^shift, and checks that CastScaled, which multiplies by 2^shift, gives the
  /// cast of x. Leaves out quotients that are inexact in binary32.
  bool Scaled(const std::string& backend) const {
    bool good = true;
    for (const int shift : {-30, 5}) {
      std::vector<float> x;
      std::vector<float> expected;
      for (std::size_t i = 0; i < x_.size(); ++i) {
        const float divided = std::ldexp(x_[i], -shift);
        if (x_[i] == x_[i] && std::ldexp(divided, shift) != x_[i]) continue;
        x.push_back(divided);
        expected.push_back(expected_[i]);
      }
      std::vector<float> got(x.size());
      CastScaled(format_, o_, shift, 0, static_cast<std::int64_t>(x.size()), x.data(), got.data());
      const auto equal =
          bits_equal(std::span<const float>(expected), std::span<const float>(got), x);
      EXPECT_TRUE(equal) << "scaled by 2^" << shift << ", " << backend << ", "
                         << describe(format_, o_);
      good = good && equal;
    }
    return good;
  }

  Format format_;
  RoundingOptions o_;
  reference::Spec spec_;
  std::vector<float> x_;
  std::vector<std::uint32_t> random_;
  std::vector<float> expected_;
};

}  // namespace cpd::testing
