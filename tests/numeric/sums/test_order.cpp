// SPDX-License-Identifier: Apache-2.0
//
// Tests SumWalk, which runs through an ordered sum and calls one function for each operation. If
// the oracle computes the operations, the result must be the oracle's sum. The walk may begin at
// any term, and the terms may be divided into calls in any way. Tests also the random integers, the
// stored partial sums (planes) and the sequence of operations.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cpd/numeric/sums/order.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/bits.h"
#include "tests/testing/fast.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::path_named;

using reference::Spec;

/// Returns random integer number `draw`.
std::uint32_t integer_of(std::int64_t draw, int random_bits) {
  const std::uint64_t mixed = static_cast<std::uint64_t>(draw + 1) * 0x9E3779B97F4A7C15U;
  return static_cast<std::uint32_t>(mixed >> 40) & ((1U << random_bits) - 1);
}

/// Computes the operations that SumWalk requests, with the oracle's rounding. Checks that random
/// integers are used one after the other, and that no plane (stored partial sum) is read before it
/// is written.
class OraclePlanes {
 public:
  OraclePlanes(const Accumulator& accumulator, const std::vector<float>& terms)
      : scheme_(accumulator.scheme),
        format_(reference::spec_of(accumulator.format)),
        inner_(reference::spec_of(accumulator.inner.value_or(accumulator.format))),
        options_(testing::oracle_options(accumulator.rounding)),
        terms_(terms) {}

  /// Begins a call that adds terms k, k + 1 and so on. Expects that the terms before k have used
  /// `draw` random integers.
  void Begin(std::int64_t k, std::int64_t draw) {
    begin_ = k;
    EXPECT_EQ(draw, draws) << "before term " << k;
  }

  void add_terms(int plane, bool starts, std::int64_t draw, std::int64_t first,
                 std::int64_t count) {
    const Spec& spec = scheme_ == Scheme::chunked ? inner_ : format_;
    for (std::int64_t j = first; j < first + count; ++j, starts = false) {
      EXPECT_EQ(draw, draws);
      if (starts) {
        planes_[plane] = reference::cast(spec, Term(j), Next());
      } else {
        planes_[plane] = reference::add(spec, planes_.at(plane), Term(j), Next());
      }
      draw = draws;
    }
  }
  void add_compensated(bool starts, std::int64_t draw, std::int64_t first, std::int64_t count) {
    EXPECT_EQ(draw, draws);
    for (std::int64_t j = first; j < first + count; ++j, starts = false) {
      if (starts) {
        planes_[0] = reference::cast(format_, Term(j), Next());
        planes_[1] = 0;
      } else {
        AddCompensated(Term(j));
      }
    }
  }
  void add_chunk(bool starts, std::int64_t draw) {
    EXPECT_EQ(draw, draws);
    const float chunk = planes_.at(1);
    planes_[0] = starts ? reference::cast(format_, chunk, Next())
                        : reference::add(format_, planes_.at(0), chunk, Next());
  }
  void open_tree(int plane, std::int64_t term) { planes_[plane] = Term(term); }
  void merge_term(int plane, std::int64_t draw, std::int64_t term) {
    EXPECT_EQ(draw, draws);
    planes_[plane] = reference::add(format_, planes_.at(plane), Term(term), Next());
  }
  void merge_trees(int plane, std::int64_t draw, bool) {
    EXPECT_EQ(draw, draws);
    planes_[plane] = reference::add(format_, planes_.at(plane), planes_.at(plane + 1), Next());
    planes_.erase(plane + 1);
  }
  void round_tree(std::int64_t draw) {
    EXPECT_EQ(draw, draws);
    planes_[0] = reference::cast(format_, planes_.at(0), Next());
  }

  [[nodiscard]] float sum() const { return planes_.at(0); }
  [[nodiscard]] int planes() const { return planes_.rbegin()->first + 1; }
  std::int64_t draws = 0;  ///< taken so far

 private:
  [[nodiscard]] float Term(std::int64_t j) const {
    return terms_.at(static_cast<std::size_t>(begin_ + j));
  }
  reference::Options Next() {
    reference::Options next = options_;
    next.random = integer_of(draws++, options_.random_bits);
    return next;
  }
  void AddCompensated(float x) {
    const float y = reference::subtract(format_, x, planes_.at(1), Next());
    const float t = reference::add(format_, planes_.at(0), y, Next());
    const float gained = reference::subtract(format_, t, planes_.at(0), Next());
    const float lost = reference::subtract(format_, gained, y, Next());
    planes_[1] = std::isfinite(t) ? lost : 0;
    planes_[0] = t;
  }

  Scheme scheme_;
  Spec format_, inner_;
  reference::Options options_;
  const std::vector<float>& terms_;
  std::int64_t begin_ = 0;
  std::map<int, float> planes_;
};

float oracle_sum(const Accumulator& a, const std::vector<float>& terms) {
  const reference::RandomSource random = [&a, draw = std::int64_t{0}]() mutable {
    return integer_of(draw++, a.rounding.random_bits);
  };
  return reference::sum(reference::order_of(a), terms, testing::oracle_options(a.rounding), random);
}

std::vector<Accumulator> accumulators(const Format& format, Rounding mode) {
  Accumulator plain{.format = format};
  plain.rounding.mode = mode;
  plain.rounding.random_bits = 8;
  std::vector<Accumulator> all;
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::pairwise}) {
    all.push_back(plain);
    all.back().scheme = scheme;
  }
  for (const std::int64_t chunk : {1, 2, 3, 16, 1000}) {
    all.push_back(plain);
    all.back().scheme = Scheme::chunked;
    all.back().chunk = chunk;
    if (chunk == 3) all.back().inner = ParseFormat("e5m2");
  }
  return all;
}

/// Expects that SumWalk gives the oracle's sum if each call takes `together` terms. If `anew` is
/// true, each call uses a new SumWalk that begins at the call's first term.
void expect_oracle(const Accumulator& a, const std::vector<float>& terms, std::int64_t together,
                   bool anew) {
  const SumOrder order = sum_order(a);
  const auto count = static_cast<std::int64_t>(terms.size());
  OraclePlanes planes(a, terms);
  SumWalk walk(order, 0);
  int most_planes = 0;
  for (std::int64_t k = 0; k < count; k += together) {
    if (anew) walk = SumWalk(order, k);
    planes.Begin(k, anew ? walk.first_draw() : draws_before(order, k));
    walk.take(planes, std::min(together, count - k));
    most_planes = std::max(most_planes, planes.planes());
  }
  if (anew) walk = SumWalk(order, count);
  walk.end(planes);
  const std::string about = ToString(a) + ", " + std::to_string(count) + " terms, " +
                            std::to_string(together) + " a call" + (anew ? ", anew" : "");
  EXPECT_EQ(testing::hex(planes.sum()), testing::hex(oracle_sum(a, terms))) << about;
  EXPECT_EQ(planes.draws, draws_of_sum(order, count)) << about;
  EXPECT_LE(most_planes, planes_of_sum(a.scheme, count)) << about;
}

TEST(SumWalk, IsTheOraclesSum) {
  for (const char* name : {"e4m3", "e5m2", "e4m3fn", "bf16", "fp32"}) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    for (const Rounding mode : {Rounding::nearest_even, Rounding::down, Rounding::stochastic}) {
      for (const Accumulator& a : accumulators(format, mode)) {
        for (const std::size_t count : {1, 2, 3, 4, 6, 7, 8, 9, 16, 31, 64, 100}) {
          std::vector<float> terms = testing::moderate_values(spec, count, count);
          if (count % 3 == 0) terms[count / 2] = 0x1p-60F;  // seen by directed and random rounding
          if (count == 31) terms[20] = HUGE_VALF;
          for (const std::int64_t together : {1, 2, 5, 100}) {
            expect_oracle(a, terms, together, false);
            expect_oracle(a, terms, together, true);
          }
        }
      }
    }
  }
}

// Adds without rounding, so every order must give the exact sum. A term that is lost or counted
// twice changes it.
class ExactPlanes {
 public:
  explicit ExactPlanes(const std::vector<double>& terms) : terms_(terms), planes_(64) {}
  void add_terms(int plane, bool starts, std::int64_t, std::int64_t first, std::int64_t count) {
    if (starts) At(plane) = {};
    for (std::int64_t j = first; j < first + count; ++j) Add(plane, Term(j));
  }
  void add_compensated(bool starts, std::int64_t draw, std::int64_t first, std::int64_t count) {
    add_terms(0, starts, draw, first, count);
  }
  void add_chunk(bool starts, std::int64_t) {
    if (starts) At(0) = {};
    Add(0, At(1));
  }
  void open_tree(int plane, std::int64_t term) { At(plane) = Term(term); }
  void merge_term(int plane, std::int64_t, std::int64_t term) { Add(plane, Term(term)); }
  void merge_trees(int plane, std::int64_t, bool) { Add(plane, At(plane + 1)); }
  void round_tree(std::int64_t) {}

  [[nodiscard]] const reference::Exact& sum() const { return planes_[0]; }

 private:
  reference::Exact& At(int plane) { return planes_.at(static_cast<std::size_t>(plane)); }
  [[nodiscard]] reference::Exact Term(std::int64_t j) const {
    return reference::exact(terms_.at(static_cast<std::size_t>(j)));
  }
  void Add(int plane, const reference::Exact& x) { At(plane) = reference::add(At(plane), x); }

  const std::vector<double>& terms_;
  std::vector<reference::Exact> planes_;
};

TEST(SumWalk, TakesEachTermOnce) {
  for (std::size_t count = 1; count <= 70; ++count) {
    std::vector<double> terms;
    reference::Exact expected;
    for (std::size_t k = 0; k < count; ++k) {
      terms.push_back(std::ldexp(k % 3 == 0 ? -1.0 : 1.0, static_cast<int>(7 * k) - 240));
      expected = reference::add(expected, reference::exact(terms.back()));
    }
    for (const Accumulator& a : accumulators(kFp32, Rounding::nearest_even)) {
      ExactPlanes planes(terms);
      SumWalk walk(sum_order(a), 0);
      walk.take(planes, static_cast<std::int64_t>(count));
      walk.end(planes);
      EXPECT_EQ(planes.sum().negative, expected.negative) << ToString(a) << ", " << count;
      EXPECT_EQ(reference::compare_magnitude(planes.sum(), expected), std::strong_ordering::equal)
          << ToString(a) << ", " << count;
    }
  }
}

/// Records each plane (stored partial sum) as a text such as `(a+b #n)`, where n is the number of
/// the random integer that rounds the sum.
class Texts {
 public:
  void add_terms(int plane, bool starts, std::int64_t draw, std::int64_t first,
                 std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::string term = std::to_string(first + j);
      planes_[plane] = starts && j == 0 ? Alone(term, draw) : Sum(planes_[plane], term, draw + j);
    }
  }
  void add_chunk(bool starts, std::int64_t draw) {
    planes_[0] = starts ? Alone(planes_[1], draw) : Sum(planes_[0], planes_[1], draw);
  }
  void open_tree(int plane, std::int64_t term) { planes_[plane] = std::to_string(term); }
  void merge_term(int plane, std::int64_t draw, std::int64_t term) {
    planes_[plane] = Sum(planes_[plane], std::to_string(term), draw);
  }
  void merge_trees(int plane, std::int64_t draw, bool of_term) {
    planes_[plane] = Sum(planes_[plane], planes_[plane + 1], draw) + (of_term ? "!" : "");
  }
  void round_tree(std::int64_t draw) { planes_[0] = Alone(planes_[0], draw); }

  static std::string Of(const SumOrder& order, std::int64_t count) {
    Texts texts;
    SumWalk walk(order, 0);
    walk.take(texts, count);
    walk.end(texts);
    return texts.planes_[0];
  }

 private:
  static std::string Alone(const std::string& a, std::int64_t draw) {
    return "(" + a + " #" + std::to_string(draw) + ")";
  }
  static std::string Sum(const std::string& a, const std::string& b, std::int64_t draw) {
    return "(" + a + "+" + b + " #" + std::to_string(draw) + ")";
  }
  std::map<int, std::string> planes_;
};

TEST(SumWalk, OperationsInOrder) {
  EXPECT_EQ(Texts::Of({}, 3), "(((0 #0)+1 #1)+2 #2)");
  EXPECT_EQ(Texts::Of({Scheme::chunked, 2}, 3), "((((0 #0)+1 #1) #2)+(2 #3) #4)");
  EXPECT_EQ(Texts::Of({Scheme::chunked, 2}, 4), "((((0 #0)+1 #1) #2)+((2 #3)+3 #4) #5)");
  EXPECT_EQ(Texts::Of({Scheme::chunked, 9}, 2), "(((0 #0)+1 #1) #2)");
  EXPECT_EQ(Texts::Of({Scheme::pairwise}, 1), "(0 #0)");
  EXPECT_EQ(Texts::Of({Scheme::pairwise}, 2), "(0+1 #0)");
  EXPECT_EQ(Texts::Of({Scheme::pairwise}, 3), "((0+1 #0)+2 #1)!");
  EXPECT_EQ(Texts::Of({Scheme::pairwise}, 7), "(((0+1 #0)+(2+3 #1) #2)+((4+5 #3)+6 #4)! #5)");
}

/// Records the planes (partial sums) of a product as texts. Term k is written as `k`, with the
/// number of its own random integer if the product is rounded.
class HeldTexts {
 public:
  explicit HeldTexts(const SumOrder& order) : order_(order), draw_(draws_before(order, 0)) {}
  void add_terms(int plane, bool starts, std::int64_t draw, std::int64_t first,
                 std::int64_t count) {
    EXPECT_EQ(draw, draw_);
    if (starts) planes_[plane] = "0";
    for (std::int64_t j = 0; j < count; ++j) planes_[plane] = Sum(planes_[plane], Term(first + j));
  }
  void add_compensated(bool starts, std::int64_t draw, std::int64_t first, std::int64_t count) {
    EXPECT_FALSE(starts);
    EXPECT_EQ(draw, draw_);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::string term = Term(first + j);
      draw_ += 3;
      planes_[0] = Sum(planes_[0], term);
    }
  }
  void add_chunk(bool starts, std::int64_t draw) {
    EXPECT_FALSE(starts);
    EXPECT_EQ(draw, draw_);
    planes_[0] = Sum(planes_[0], planes_[1]);
  }
  void open_tree(int, std::int64_t term) { tree_ = Term(term); }
  void merge_term(int, std::int64_t draw, std::int64_t term) {
    EXPECT_EQ(draw, draw_);
    tree_ = Sum(tree_, Term(term));
  }
  void merge_trees(int plane, std::int64_t draw, bool of_term) {
    EXPECT_EQ(draw, draw_);
    tree_ = Sum(planes_.at(plane), tree_) + (of_term ? "!" : "");
  }
  void round_tree(std::int64_t) { FAIL() << "a sum that has a start rounds no term alone"; }
  void load_tree(int plane) { tree_ = planes_.at(plane); }
  void store_tree(int plane) { planes_[plane] = tree_; }

  /// Returns a sum of `count` products as a text that shows the order of its additions. Adds
  /// `together` products at a time, each time with a new SumWalk.
  static std::string Of(const SumOrder& order, std::int64_t count, std::int64_t together = 8) {
    HeldTexts texts(order);
    texts.planes_[0] = "c";
    for (std::int64_t k = 0; k < count; k += together) {
      texts.first_ = k;
      SumWalk(order, k).take(texts, std::min(together, count - k));
      EXPECT_TRUE(k + together >= count || texts.draw_ == draws_before(order, k + together));
    }
    SumWalk(order, count).end(texts);
    EXPECT_EQ(texts.draw_, draws_of_sum(order, count));
    EXPECT_LE(texts.planes_.rbegin()->first + 1, planes_of_sum(order.scheme, count));
    return texts.planes_[0];
  }

 private:
  std::string Term(std::int64_t j) {
    const std::string term = std::to_string(first_ + j);
    return order_.term_draws == 0 ? term : term + "#" + std::to_string(draw_++);
  }
  std::string Sum(const std::string& a, const std::string& b) {
    return "(" + a + "+" + b + " #" + std::to_string(draw_++) + ")";
  }

  SumOrder order_;
  std::int64_t draw_, first_ = 0;
  std::string tree_;
  std::map<int, std::string> planes_;
};

TEST(SumWalk, ProductsInOrder) {
  const auto rounded = [](Scheme scheme, std::int64_t chunk = 64) {
    return product_order(scheme, false, chunk);
  };
  EXPECT_EQ(HeldTexts::Of(rounded(Scheme::sequential), 2), "((c+0#0 #1)+1#2 #3)");
  EXPECT_EQ(HeldTexts::Of(product_order(Scheme::sequential, true), 2), "((c+0 #0)+1 #1)");
  EXPECT_EQ(HeldTexts::Of(rounded(Scheme::kahan), 2), "((c+0#0 #4)+1#5 #9)");
  EXPECT_EQ(HeldTexts::Of(rounded(Scheme::chunked, 2), 3),
            "((c+((0+0#0 #1)+1#2 #3) #4)+(0+2#5 #6) #7)");
  EXPECT_EQ(HeldTexts::Of(rounded(Scheme::pairwise), 0), "c");
  EXPECT_EQ(HeldTexts::Of(rounded(Scheme::pairwise), 1), "(c+0#0 #1)!");
  EXPECT_EQ(HeldTexts::Of(product_order(Scheme::pairwise, true), 3), "(c+((0+1 #0)+2 #1)! #2)");
  EXPECT_EQ(HeldTexts::Of(product_order(Scheme::pairwise, true), 4),
            "(c+((0+1 #0)+(2+3 #1) #2) #3)");
  for (const Scheme scheme :
       {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
    for (std::int64_t count = 1; count < 40; ++count) {
      const std::string whole = HeldTexts::Of(rounded(scheme, 3), count, 64);
      EXPECT_EQ(HeldTexts::Of(rounded(scheme, 3), count, 2), whole) << ToString(scheme) << count;
    }
  }
}

TEST(SumWalk, NumbersOfDraws) {
  const std::vector<SumOrder> orders = {{},
                                        {Scheme::kahan},
                                        {Scheme::pairwise},
                                        {Scheme::chunked, 1},
                                        {Scheme::chunked, 3},
                                        {Scheme::chunked, 1000}};
  for (const SumOrder& order : orders) {
    EXPECT_EQ(draws_before(order, 0), 0);
    EXPECT_EQ(draws_of_sum(order, 0), 0);
    for (std::int64_t draws = 2; draws < 60; ++draws) {
      const std::int64_t most = most_terms(order, draws);
      EXPECT_LE(draws_of_sum(order, most), draws) << ToString(order.scheme);
      EXPECT_GT(draws_of_sum(order, most + 1), draws) << ToString(order.scheme);
    }
  }
}

TEST(SumWalk, PlansOfItsSteps) {
  const Format e4m3 = ParseFormat("e4m3");
  const Format e5m2 = ParseFormat("e5m2");
  Accumulator a{.format = e4m3};
  EXPECT_EQ(plan_of_terms(a, e4m3).path, path_named("veltkamp"));
  EXPECT_EQ(plan_of_terms(a, kFp32).path, path_named("veltkamp_exact"));
  a.format = ParseFormat("e3m0");
  EXPECT_EQ(plan_of_terms(a, a.format).path, path_named("powers_of_two"));
  EXPECT_EQ(plan_of_terms(a, ParseFormat("e2m1")).path, path_named("powers_of_two_exact"));
  EXPECT_EQ(plan_of_terms(a, ParseFormat("e4m0")).path, path_named("powers_of_two_exact"))
      << "a finer grid";
  a.format = e4m3;
  a.scheme = Scheme::chunked;
  a.inner = e5m2;
  EXPECT_EQ(plan_of_terms(a, e5m2).round.man, 2);
  EXPECT_TRUE(plan_of_terms(a, e5m2).in_binary32);
  EXPECT_EQ(plan_of_sums(a).round.man, 3);
  EXPECT_TRUE(plan_of_sums(a).in_binary32);
  a = {.format = e4m3, .scheme = Scheme::pairwise};
  EXPECT_TRUE(plan_of_terms(a, e4m3).in_binary32);
  EXPECT_FALSE(plan_of_terms(a, e5m2).in_binary32) << "its grid is finer: two of them hide a tie";
  EXPECT_TRUE(plan_of_sums(a).in_binary32);
}

/// Adds integers by the operations of SumWalk. The functions are constexpr, so the compiler can
/// evaluate a whole sum.
struct Integers {
  std::int64_t planes[8] = {};
  const std::int64_t* terms;

  constexpr void add_terms(int plane, bool starts, std::int64_t, std::int64_t first,
                           std::int64_t count) {
    if (starts) planes[plane] = 0;
    for (std::int64_t j = 0; j < count; ++j) planes[plane] += terms[first + j];
  }
  constexpr void add_chunk(bool starts, std::int64_t) {
    planes[0] = (starts ? 0 : planes[0]) + planes[1];
  }
  constexpr void open_tree(int plane, std::int64_t term) { planes[plane] = terms[term]; }
  constexpr void merge_term(int plane, std::int64_t, std::int64_t term) {
    planes[plane] += terms[term];
  }
  constexpr void merge_trees(int plane, std::int64_t, bool) { planes[plane] += planes[plane + 1]; }
  constexpr void round_tree(std::int64_t) {}
};

constexpr std::int64_t total(Scheme scheme) {
  const std::int64_t terms[] = {1, 20, 300, 4000, 50000, 600000, 7000000};
  Integers integers{{}, terms};
  SumWalk walk({scheme, 3}, 0);
  walk.take(integers, 7);
  walk.end(integers);
  return integers.planes[0];
}
static_assert(total(Scheme::sequential) == 7654321);
static_assert(total(Scheme::chunked) == 7654321);
static_assert(total(Scheme::pairwise) == 7654321);

}  // namespace
}  // namespace cpd
