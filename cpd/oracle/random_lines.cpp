// SPDX-License-Identifier: Apache-2.0
#include "cpd/oracle/random_lines.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "cpd/base/parallel.h"

namespace cpd {
namespace {

using soft::Operation;

constexpr std::size_t kAtOnce = 256;       ///< lines (test inputs) that are generated together
constexpr std::int64_t kDrawGrain = 4096;  ///< lines in one task of a thread

/// An array with one number, such as an exponent or a code, for each of kAtOnce lines.
using Column = std::array<std::int32_t, kAtOnce>;

/// Applies `function` to the numbers of each line in `columns`, and returns the results as a
/// column.
template <class Function, class... Columns>
Column Each(const Function& function, const Columns&... columns) {
  Column made;
  for (std::size_t i = 0; i < kAtOnce; ++i) made[i] = function(columns[i]...);
  return made;
}

/// Returns a number with all bits set if `holds`, else 0. Selects by bit masks, because a branch on
/// random numbers is slow.
std::int32_t All(bool holds) { return -std::int32_t{holds}; }
std::int32_t Choose(bool holds, std::int32_t then, std::int32_t otherwise) {
  return otherwise ^ ((then ^ otherwise) & All(holds));
}

Column Where(const Column& is_zero, const Column& then, const Column& otherwise) {
  return Each([](auto c, auto x, auto y) { return Choose(c == 0, x, y); }, is_zero, then,
              otherwise);
}

/// Converts a code of sign and magnitude to two's complement.
std::int32_t Complemented(const Format& f, std::int32_t code) {
  const std::int32_t size = std::int32_t{1} << (f.bits() - 1);
  const std::int32_t made = Choose((code & size) != 0, 2 * size - (code & (size - 1)), code);
  return made & (2 * size - 1);
}

/// Skips in a random stream, in which word n * k + i is word k of line i (n lines). `line` skips to
/// the next line, `lines` to the line kTogether lines later, and `column` to the next word of the
/// same line.
struct Leaps {
  Leaps(const RandomWords& words, std::int64_t n)
      : line(words.leap(1)),
        lines(words.leap(kTogether)),
        column(words.leap(static_cast<std::uint64_t>(n))) {}

  static constexpr std::size_t kTogether = 4;  ///< which a processor multiplies at the same time
  RandomWords::Leap line, lines, column;
};

/// Generates random numbers for up to kAtOnce lines, one column (a number for each line) at a time.
/// `first` is the stream of random words at word 0 of the first line.
class Draw {
 public:
  Draw(const RandomWords& first, const Leaps& leaps) : first_(first), leaps_(leaps) {}

  /// Returns the number of random words that each line has used so far.
  [[nodiscard]] int words() const { return words_; }

  /// Returns uniformly distributed numbers of `bits` bits.
  Column Any(int bits) {
    return Next([=](std::uint64_t word) { return word >> (64 - bits); });
  }

  /// Returns integers in [0, limit). Each probability deviates from 1 / limit by less than 2^-30.
  Column Below(std::int32_t limit) {
    const auto size = static_cast<std::uint64_t>(limit);
    return Next([=](std::uint64_t word) { return (word >> 32) * size >> 32; });
  }

  /// Returns operands whose exact results are near corner cases of the result's format.
  std::array<Column, 3> Near(const ElementRule& rule) {
    const auto& f = rule.operands;
    const Format& to = rule.result;
    const Column first = Exponent(f[0]);
    switch (rule.operation) {
      case Operation::cast:
      case Operation::sqrt: {
        const Column choice = Below(2);
        return {Codes(f[0], Where(choice, first, CornerExponent(to)))};
      }
      case Operation::add:
        return Meeting(rule, first, {});
      case Operation::div: {
        const Column free = Exponent(f[1]);
        const Column away = Each([](auto x, auto y) { return x - y; }, first, CornerExponent(to));
        return Pair(f, first, Where(Below(2), free, away));
      }
      case Operation::mul:
      case Operation::fma: {
        const Column free = Exponent(f[1]);
        const Column choice = Below(2);
        const Column meets = Each([](auto x, auto y) { return x - y; }, CornerExponent(to), first);
        const Column second = Where(choice, free, meets);
        return rule.operation == Operation::mul ? Pair(f, first, second)
                                                : Meeting(rule, first, second);
      }
    }
    return {};
  }

  /// Returns integers of `bits` bits. Half of the integers are uniformly distributed; half are 0,
  /// 1, the maximum, the middle or the middle minus 1.
  Column Integers(int bits) {
    const Column anything = Any(bits);
    const std::int32_t middle = std::int32_t{1} << (bits - 1);
    const std::array<std::int32_t, 5> ends{0, 1, middle - 1, middle, 2 * middle - 1};
    const Column choice = Below(2);
    const Column end = Each([&](auto e) { return ends[static_cast<std::size_t>(e)]; }, Below(5));
    return Where(choice, anything, end);
  }

 private:
  template <class Function>
  Column Next(const Function& function) {
    RandomWords a = first_;
    RandomWords b = a.moved(leaps_.line);
    RandomWords c = b.moved(leaps_.line);
    RandomWords d = c.moved(leaps_.line);
    Column made;
    const auto put = [&](std::size_t i, RandomWords& words) {
      made[i] = static_cast<std::int32_t>(function(words.word()));
      words = words.moved(leaps_.lines);
    };
    for (std::size_t i = 0; i < kAtOnce; i += Leaps::kTogether) {
      put(i, a);
      put(i + 1, b);
      put(i + 2, c);
      put(i + 3, d);
    }
    first_ = first_.moved(leaps_.column);
    ++words_;
    return made;
  }

  Column Exponent(const Format& f) {
    return Each([&](auto x) { return x - f.bias; }, Below(1 << f.exp));
  }

  /// Returns random exponents near the format's least and greatest exponents.
  Column CornerExponent(const Format& f) {
    const int least = 1 - f.bias - f.man - 3;
    const int greatest = (1 << f.exp) - 1 - f.bias - 2;
    const Column low = Below(f.man + 5);
    const Column high = Below(4);
    return Each([&](auto c, auto x, auto y) { return Choose(c == 0, least + x, greatest + y); },
                Below(2), low, high);
  }

  /// Returns codes whose significands have few ones or few zeros. An exponent beyond the format's
  /// range is replaced by the nearest exponent of the format.
  Column Codes(const Format& f, const Column& exponents) {
    const Column any = Any(24);
    const Column kept = Below(f.man + 1);
    const Column style = Below(4);
    const std::int32_t top = (1 << f.exp) - 1;
    const std::int32_t hidden = 1 << f.man;
    const auto code = [=, bias = f.bias, man = f.man](auto bits, auto k, auto s, auto exponent) {
      const std::int32_t low = (1 << k) - 1;
      const std::int32_t zeros = (low & All(s == 0)) | All(s == 2);
      const std::int32_t ones = (low & All(s == 1)) | (hidden >> (k + 1) & All(s == 2));
      const std::int32_t mantissa = (bits >> (24 - man) & ~zeros) | ones;
      return std::clamp<std::int32_t>(exponent + bias, 0, top) << man | mantissa;
    };
    Column codes = Each(code, any, kept, style, exponents);
    if (f.is_signed) {
      codes = Each([&](auto x, auto sign) { return x | sign << (f.exp + f.man); }, codes, Below(2));
    }
    if (!is_integer(f.encoding)) return codes;
    return Each([&](auto x) { return Complemented(f, x); }, codes);
  }

  std::array<Column, 3> Pair(const std::array<Format, 3>& f, const Column& first,
                             const Column& second) {
    const Column x = Codes(f[0], first);
    return {x, Codes(f[1], second)};
  }

  /// Returns operands of an add or an fma. The exponents of the two terms (a number or a product,
  /// and the addend) differ by at most the result's mantissa bits plus 3.
  std::array<Column, 3> Meeting(const ElementRule& rule, const Column& first,
                                const Column& second) {
    const std::int32_t reach = rule.result.man + 3;
    const Column away = Below(2 * reach + 1);
    const Column close = Below(3);
    const Column last =
        Each([&](auto c, auto x, auto y, auto far,
                 auto near) { return x + y + Choose(c == 0, far - reach, near - 1); },
             Below(2), first, second, away, close);
    if (rule.operation == Operation::add) return Pair(rule.operands, first, last);
    const auto [x, y, unused] = Pair(rule.operands, first, second);
    return {x, y, Codes(rule.operands[2], last)};
  }

  RandomWords first_;
  const Leaps& leaps_;
  int words_ = 0;
};

/// Generates up to kAtOnce lines, starting at line `begin`. Returns the number of random words per
/// line.
int DrawSome(const ElementRule& rule, const RandomWords& words, const Leaps& leaps,
             const RandomLines& lines, std::int64_t begin) {
  Draw draw(words.moved(words.leap(static_cast<std::uint64_t>(begin) + 1)), leaps);
  const auto count = std::min(kAtOnce, static_cast<std::size_t>(lines.n - begin));
  const auto store = [&](const Column& numbers, std::uint32_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
      out[static_cast<std::size_t>(begin) + i] = static_cast<std::uint32_t>(numbers[i]);
    }
  };
  const auto operands = static_cast<std::size_t>(soft::operands_of(rule.operation));
  std::array<Column, 3> any;
  for (std::size_t k = 0; k < operands; ++k) any[k] = draw.Any(rule.operands[k].bits());
  const std::array<Column, 3> near = draw.Near(rule);
  const Column choice = draw.Below(2);
  for (std::size_t k = 0; k < operands; ++k) {
    store(Where(choice, any[k], near[k]), lines.operands[k]);
  }
  if (rule.rounding.mode == Rounding::stochastic) {
    store(draw.Integers(rule.rounding.random_bits), lines.random);
  }
  return draw.words();
}

}  // namespace

RandomWords::Leap RandomWords::leap(std::uint64_t count) const {
  Leap all;
  Leap power{State{0x2360ED051FC65DA4} << 64 | 0x4385DF649FCCF645, increment_};  // of one word
  for (; count != 0; count >>= 1) {
    if (count % 2 == 1) {
      all = {all.factor * power.factor, all.plus * power.factor + power.plus};
    }
    power = {power.factor * power.factor, (power.factor + 1) * power.plus};
  }
  return all;
}

int DrawLines(const ElementRule& rule, const RandomWords& words, const RandomLines& lines) {
  const Leaps leaps(words, lines.n);
  std::atomic<int> count = 0;
  parallel_for(lines.n, kDrawGrain, kDrawGrain, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kAtOnce) count = DrawSome(rule, words, leaps, lines, begin);
  });
  return count;
}

}  // namespace cpd
