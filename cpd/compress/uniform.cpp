// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/uniform.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/compress/bits.h"
#include "cpd/compress/blockwise.h"
#include "cpd/compress/huffman.h"
#include "cpd/compress/radix.h"
#include "cpd/compress/words.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/scaled/uniform_bins.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using std::int64_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr int kMostBits = 30;
constexpr int64_t kPackage = 65536;
constexpr int64_t kHeader = 12;
constexpr int64_t kFirstSize = 4;  // the bytes for the size of a Huffman package's first half
constexpr uint32_t kNan = 0x7FC00000;

int64_t PackageBytes(int64_t n, int width) { return kHeader + (n * width + 7) / 8; }

int WholeBits(double bits) {
  const double rounded = std::floor(bits + 0.5);
  return rounded > 1 ? static_cast<int>(std::min<double>(rounded, kMostBits)) : 1;
}

/// Returns an array of the values times 2^shift, rounded once: x itself if shift is 0, else `to`,
/// to which the products are written.
const float* Shifted(int shift, int64_t n, const float* x, float* to) {
  if (shift == 0) return x;
  Unscale(shift, 1, n, x, to);
  return to;
}

/// The least and the greatest finite value of a range. Both are first computed for each of kLanes
/// interleaved parts of the range, so that compilers vectorize the loop.
class FiniteRange {
 public:
  FiniteRange() {
    least_.fill(INFINITY);
    greatest_.fill(-INFINITY);
  }
  void Add(int64_t n, const float* x) {
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) AddLanes(kLanes, x + i);
    AddLanes(n % kLanes, x + n - n % kLanes);
  }
  [[nodiscard]] float least() const { return *std::ranges::min_element(least_); }
  [[nodiscard]] float greatest() const { return *std::ranges::max_element(greatest_); }

 private:
  static constexpr int64_t kLanes = 64;
  void AddLanes(int64_t n, const float* x) {
    for (int64_t i = 0; i < n; ++i) {
      const auto lane = static_cast<size_t>(i);
      // `finite` is NaN if x[i] is not finite, and so changes no minimum or maximum: no comparison
      // with NaN is true.
      const float finite = x[i] - x[i] + x[i];
      least_[lane] = finite < least_[lane] ? finite : least_[lane];
      greatest_[lane] = finite > greatest_[lane] ? finite : greatest_[lane];
    }
  }
  std::array<float, kLanes> least_, greatest_;
};

// ---- a package's head

struct PieceHead {
  int64_t n = 0;
  int bits = 0;
  bool is_huffman = false, has_nan = false;
  float least = 0, greatest = 0;

  [[nodiscard]] int width() const { return bits + (has_nan ? 1 : 0); }
  [[nodiscard]] int64_t first_half() const { return n - n / 2; }
  [[nodiscard]] uint32_t alphabet() const { return (1U << bits) + (has_nan ? 1 : 0); }
};

void PutHead(const PieceHead& head, uint8_t* to) {
  const uint32_t kind = (head.is_huffman ? 1U : 0U) + (head.has_nan ? 2U : 0U);
  PutWord(static_cast<uint32_t>(head.n - 1) | static_cast<uint32_t>(head.bits) << 16 | kind << 24,
          to);
  PutWord(std::bit_cast<uint32_t>(head.least), to + 4);
  PutWord(std::bit_cast<uint32_t>(head.greatest), to + 8);
}

PieceHead ReadHead(std::span<const uint8_t> bytes, int64_t n) {
  if (static_cast<int64_t>(bytes.size()) < kHeader) {
    throw DamagedBytes("a package's head takes " + std::to_string(kHeader) + " bytes, got " +
                       std::to_string(bytes.size()));
  }
  const uint32_t first = Word(bytes.data());
  const uint32_t kind = first >> 24;
  const PieceHead head{.n = int64_t{first & 0xFFFF} + 1,
                       .bits = static_cast<int>(first >> 16 & 0xFF),
                       .is_huffman = kind % 2 == 1,
                       .has_nan = kind / 2 == 1,
                       .least = std::bit_cast<float>(Word(bytes.data() + 4)),
                       .greatest = std::bit_cast<float>(Word(bytes.data() + 8))};
  if (head.n != n) {
    throw DamagedBytes("a package of " + std::to_string(head.n) + " values in place of " +
                       std::to_string(n));
  }
  const bool is_range = std::isfinite(head.least) && std::isfinite(head.greatest) &&
                        head.least <= head.greatest &&
                        (head.bits == 0) == (head.least == head.greatest);
  if (kind > 3 || head.bits > kMostBits || !is_range) {
    throw DamagedBytes("a package's kind must be 0…3, its bits 0…" + std::to_string(kMostBits) +
                       ", its range finite and ascending; got kind " + std::to_string(kind) + ", " +
                       std::to_string(head.bits) + " bits, " + std::to_string(head.least) + "…" +
                       std::to_string(head.greatest));
  }
  return head;
}

// ---- encode

/// Appends the codes of values begin … end - 1 to a bit stream. code_of(i) must return the code of
/// value i.
template <class CodeOf>
void PutCodes(int64_t begin, int64_t end, CodeOf code_of, BitWriter& to) {
  BitWriter own = to;  // a local copy, which the bytes written cannot alias
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    own.Put(code_of(i), code_of(i + 1), code_of(i + 2), code_of(i + 3));
  }
  for (; i < end; ++i) own.Put(code_of(i));
  to = own;
}

/// A package's bins.
struct Bins {
  /// The bin of each value of a package (the unit of a message, up to 65,536 values). If `by_place`
  /// is true, each entry is instead an index in `symbols`, which lists the bins.
  std::vector<uint32_t> bins;
  std::vector<uint32_t> symbols;  ///< the bins that are used, ascending
  std::vector<uint32_t> counts;
  bool by_place = false;
};

void CountFew(uint32_t alphabet, Bins* all) {
  // Counts the values of each bin in up to four tables in turn, so that increments for equal
  // neighbors do not wait for each other.
  const size_t ways = alphabet <= 4096 ? 4 : 1;
  std::vector<uint32_t> counts(ways * alphabet);
  const auto count = [&]<size_t kWays>() {
    const size_t n = all->bins.size();
    const size_t whole = n - n % kWays;
    const uint32_t* const bins = all->bins.data();
    for (size_t i = 0; i < whole; i += kWays) {
      for (size_t way = 0; way < kWays; ++way) ++counts[way * alphabet + bins[i + way]];
    }
    for (size_t i = whole; i < n; ++i) ++counts[bins[i]];
  };
  if (ways == 4) {
    count.template operator()<4>();
  } else {
    count.template operator()<1>();
  }
  for (uint32_t symbol = 0; symbol < alphabet; ++symbol) {
    uint32_t sum = 0;
    for (size_t way = 0; way < ways; ++way) sum += counts[way * alphabet + symbol];
    if (sum == 0) continue;
    all->symbols.push_back(symbol);
    all->counts.push_back(sum);
  }
}

void CountMany(int width, Bins* all) {
  std::vector<uint64_t> keys(all->bins.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = uint64_t{all->bins[i]} << 32 | i;
  SortByBits(keys, 32, width);
  for (const uint64_t key : keys) {
    const auto symbol = static_cast<uint32_t>(key >> 32);
    if (all->symbols.empty() || all->symbols.back() != symbol) {
      all->symbols.push_back(symbol);
      all->counts.push_back(0);
    }
    ++all->counts.back();
    all->bins[static_cast<uint32_t>(key)] = static_cast<uint32_t>(all->symbols.size() - 1);
  }
  all->by_place = true;
}

int64_t PutFixed(const PieceHead& head, const Bins& all, std::span<uint8_t> to) {
  BitWriter writer(to);
  const int width = head.width();
  const uint32_t* const bins = all.bins.data();
  if (all.by_place) {
    const auto code_of = [&](int64_t i) { return BitCode{all.symbols[bins[i]], width}; };
    PutCodes(0, head.n, code_of, writer);
  } else {
    PutCodes(0, head.n, [&](int64_t i) { return BitCode{bins[i], width}; }, writer);
  }
  return writer.End();
}

int64_t PutHuffman(const PieceHead& head, const Bins& all, const HuffmanCode& code,
                   std::span<uint8_t> to) {
  std::vector<BitCode> codes = CanonicalCodes(code.lengths);
  if (!all.by_place) {
    std::vector<BitCode> by_symbol(head.alphabet());
    for (size_t i = 0; i < codes.size(); ++i) by_symbol[code.symbols[i]] = codes[i];
    codes.swap(by_symbol);
  }
  const uint32_t* const bins = all.bins.data();
  const BitCode* const code_of_bin = codes.data();
  const auto code_of = [=](int64_t i) { return code_of_bin[bins[i]]; };
  BitWriter first(to.subspan(kFirstSize));
  PutHuffmanCode(code, first);
  PutCodes(0, head.first_half(), code_of, first);
  const int64_t bytes = first.End();
  PutWord(static_cast<uint32_t>(bytes), to.data());
  BitWriter second(to.subspan(static_cast<size_t>(kFirstSize + bytes)));
  PutCodes(head.first_half(), head.n, code_of, second);
  return kFirstSize + bytes + second.End();
}

/// Returns a Huffman code if it takes fewer bits than codes of fixed width; else returns none.
std::optional<HuffmanCode> ShorterCode(const PieceHead& head, Bins* all) {
  if (head.alphabet() <= kPackage + 1) {
    CountFew(head.alphabet(), all);
  } else {
    CountMany(head.width(), all);
  }
  HuffmanCode code{all->symbols, HuffmanLengths(all->counts)};
  int64_t bits = HuffmanCodeBits(code);
  for (size_t i = 0; i < code.lengths.size(); ++i)
    bits += int64_t{all->counts[i]} * code.lengths[i];
  // The bits that a package (the encoding of up to 65,536 values) needs besides the Huffman table
  // and the codes: the size field, and the last bytes of two streams, which may not be full.
  constexpr int64_t kBeside = 8 * (kFirstSize + 2);
  if (bits + kBeside >= head.n * head.width()) return std::nullopt;
  return code;
}

/// Writes a package, the encoding of up to 65,536 values. Returns the number of its bytes.
int64_t PutPackage(const UniformBins& bins, PieceHead head, bool may_be_huffman, const float* x,
                   std::span<uint8_t> to) {
  Bins all;
  all.bins.resize(static_cast<size_t>(head.n));
  head.has_nan = bins.BinsOf(head.n, x, all.bins.data());
  const auto code = may_be_huffman ? ShorterCode(head, &all) : std::nullopt;
  head.is_huffman = code.has_value();
  PutHead(head, to.data());
  const std::span<uint8_t> body = to.subspan(kHeader);
  return kHeader + (code ? PutHuffman(head, all, *code, body) : PutFixed(head, all, body));
}

// ---- decode

/// Decodes bin numbers: writes y[i] = (value of bin given[i] * 2^shift) / divisor, as Codec::Decode
/// defines.
void ValuesOf(const UniformBins& bins, std::span<const uint32_t> given, int shift, float divisor,
              float* y) {
  for (size_t i = 0; i < given.size(); ++i) {
    y[i] = given[i] <= bins.last() ? bins.CentreOf(given[i]) : std::bit_cast<float>(kNan);
  }
  if (shift != 0 || divisor != 1) Unscale(shift, divisor, static_cast<int64_t>(given.size()), y, y);
}

int64_t ReadHuffman(const PieceHead& head, const UniformBins& bins, std::span<const uint8_t> bytes,
                    int shift, float divisor, float* y) {
  const auto size = static_cast<int64_t>(bytes.size()) - kFirstSize;
  if (size < 0 || Word(bytes.data()) > size) throw DamagedBytes("a package ends in its codes");
  const size_t first_size = Word(bytes.data());
  BitReader first(bytes.subspan(kFirstSize, first_size));
  BitReader second(bytes.subspan(kFirstSize + first_size));
  const HuffmanCode code = ReadHuffmanCode(first, head.alphabet(), head.n);
  std::vector<float> values(code.symbols.size());
  ValuesOf(bins, code.symbols, shift, divisor, values.data());
  std::vector<uint32_t> patterns(values.size());
  std::ranges::transform(values, patterns.begin(),
                         [](float value) { return std::bit_cast<uint32_t>(value); });
  HuffmanDecoder(code.lengths, patterns)
      .Decode(first, head.first_half(), second, head.n - head.first_half(), y);
  if (first.End() != static_cast<int64_t>(first_size)) {
    throw DamagedBytes("there is more than the codes of a package's first half");
  }
  return kFirstSize + static_cast<int64_t>(first_size) + second.End();
}

constexpr int64_t kRun = 4096;

int64_t ReadFixed(const PieceHead& head, const UniformBins& bins, std::span<const uint8_t> bytes,
                  int shift, float divisor, float* y) {
  BitReader reader(bytes);
  std::vector<float> centres;  // of all bins, where there are many more values
  if (4 * int64_t{head.alphabet()} <= head.n) {
    std::vector<uint32_t> all(head.alphabet());
    std::iota(all.begin(), all.end(), 0U);
    centres.resize(all.size());
    ValuesOf(bins, all, shift, divisor, centres.data());
  }
  const int width = head.width();
  const auto at_once = static_cast<size_t>(BitReader::kSeen / std::max(width, 1));
  std::array<uint32_t, kRun> buffer;
  for (int64_t i = 0; i < head.n; i += kRun) {
    const auto run = std::span(buffer).first(static_cast<size_t>(std::min(kRun, head.n - i)));
    uint32_t largest = 0;
    for (size_t j = 0; j < run.size();) {
      uint64_t window = reader.Peek();
      const size_t end = std::min(run.size(), j + at_once);
      for (size_t k = j; k < end; ++k) {
        run[k] = static_cast<uint32_t>(window >> 32 >> (32 - width));
        window <<= width;
        largest = std::max(largest, run[k]);
      }
      reader.Skip(static_cast<int>(end - j) * width);
      j = end;
    }
    if (largest >= head.alphabet()) {
      throw DamagedBytes("a bin must be below " + std::to_string(head.alphabet()) + ", got " +
                         std::to_string(largest));
    }
    if (centres.empty()) {
      ValuesOf(bins, run, shift, divisor, y + i);
    } else {
      std::ranges::transform(run, y + i, [&](uint32_t bin) { return centres[bin]; });
    }
  }
  return reader.End();
}

/// Decodes a package, the encoding of up to 65,536 values. Returns the number of its bytes.
int64_t ReadPackage(std::span<const uint8_t> bytes, int64_t n, int shift, float divisor, float* y) {
  const PieceHead head = ReadHead(bytes, n);
  const UniformBins bins(head.least, head.greatest, head.bits);
  const auto read = head.is_huffman ? ReadHuffman : ReadFixed;
  return kHeader + read(head, bins, bytes.subspan(kHeader), shift, divisor, y);
}

}  // namespace

// ---- the state

UniformState::UniformState(const UniformBits& rule, const RoundingOptions& random)
    : rule_(rule), random_(random) {}

double UniformState::Entropy(const Piece& layer, const float* x) const {
  const auto step = std::max<int64_t>(1, static_cast<int64_t>(1 / rule_.fraction));
  const uint64_t number =
      layer.random != nullptr
          ? layer.random[0]
          : random_integer(random_.random_bits, layer.key.seed, layer.key.stream, 0);
  const auto span = static_cast<uint64_t>(std::min(step, layer.n));
  std::vector<float> sample;
  for (auto i = static_cast<int64_t>(number * span >> random_.random_bits); i < layer.n;
       i += step) {
    sample.push_back(x[i]);
  }
  const auto n = static_cast<int64_t>(sample.size());
  Shifted(layer.shift, n, sample.data(), sample.data());
  const UniformBins bins(least_, greatest_, rule_.sample);
  std::vector<uint32_t> places(sample.size());
  bins.BinsOf(n, sample.data(), places.data());
  std::vector<int64_t> counts(size_t{bins.last()} + 2);
  for (const uint32_t place : places) ++counts[place];
  counts.pop_back();  // the count of values that are not finite
  double total = 0, sum = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const auto times = static_cast<double>(count);
    total += times;
    sum += times * std::log2(times);
  }
  return total == 0 ? 0 : std::log2(total) - sum / total;
}

int UniformState::ChooseBits(const Piece& layer, const float* x) const {
  if (least_ == greatest_) return 0;
  switch (rule_.rule) {
    case UniformBits::Rule::fixed:
      return rule_.bits;
    case UniformBits::Rule::entropy:
      return WholeBits(Entropy(layer, x) + rule_.c);
    default:
      return WholeBits(std::log2(gradient_ + rule_.c0) + rule_.c1);
  }
}

void UniformState::BeginOn(const SharedQueue& /*queue*/, const Piece& layer, const float* x) {
  if (rule_.rule == UniformBits::Rule::gradient && !(gradient_ >= 0)) {
    throw Error(
        "uniform bits=gradient needs the root mean square of the tensor's gradient: set it in the "
        "call's states");
  }
  Guarded([&] {
    std::array<float, kRun> buffer;
    FiniteRange range;
    for (int64_t i = 0; i < layer.n; i += kRun) {
      const int64_t run = std::min(kRun, layer.n - i);
      range.Add(run, Shifted(layer.shift, run, x + i, buffer.data()));
    }
    const bool any = range.least() <= range.greatest();
    least_ = any ? range.least() + 0.0F : 0;  // -0 is 0
    greatest_ = any ? range.greatest() + 0.0F : 0;
    bits_ = ChooseBits(layer, x);
  });
}

// ---- the codec

Uniform::Uniform(const UniformBits& rule, Coding coding, const RoundingOptions& random,
                 Results results)
    : rule_(rule), coding_(coding), random_(random), results_(results) {
  Check(random_);
  const auto check = [](const char* what, double value, double least, double most) {
    if (value >= least && value <= most) return;
    throw Error(std::string(what) + " must be " + NumberText(least) + "…" + NumberText(most) +
                ", got " + NumberText(value));
  };
  check("bits", rule_.bits, 1, kMostBits);
  check("c", rule_.c, 0, kMostBits);
  check("sample", rule_.sample, 1, 16);
  check("fraction", rule_.fraction, 1e-6, 1);
  check("c0", rule_.c0, 0, 1e30);
  check("c1", rule_.c1, -100, 100);
  if (results_ == Results::encoded && needs_gradient()) {
    throw Error(
        "uniform: results=encoded takes bits=entropy or bits=N: sums have no gradient, by which "
        "bits=gradient would choose");
  }
}

namespace {

struct UniformOptions : UniformBits {
  Uniform::Coding coding = Uniform::Coding::huffman;
  Uniform::Results results = Uniform::Results::exact;
};

constexpr std::array<std::string_view, 2> kUniformCodings{"huffman", "fixed"};
constexpr std::array<std::string_view, 2> kUniformResults{"exact", "encoded"};

bool IsAlways(const UniformOptions& /*options*/) { return true; }
bool ByEntropy(const UniformOptions& o) { return o.rule == UniformBits::Rule::entropy; }
bool ByGradient(const UniformOptions& o) { return o.rule == UniformBits::Rule::gradient; }

void SetBits(UniformOptions& options, std::string_view text) {
  using Rule = UniformBits::Rule;
  options.rule = text == "entropy"    ? Rule::entropy
                 : text == "gradient" ? Rule::gradient
                                      : Rule::fixed;
  if (options.rule == Rule::fixed) {
    options.bits = static_cast<int>(ParseInteger("bits", text, 1, kMostBits));
  }
}
FieldValue BitsOf(const UniformOptions& o) {
  if (ByEntropy(o)) return FieldOf("entropy");
  return ByGradient(o) ? FieldOf("gradient") : FieldOf(std::to_string(o.bits));
}

/// Returns the key of a numeric option, such as `c`, that belongs to one rule for the number of
/// bits. has(options) must return whether the options use that rule.
template <KeyName name, auto member>
constexpr Key<UniformOptions> RuleKey(bool (*has)(const UniformOptions&)) {
  return {
      name.letters,
      "number",
      [](UniformOptions& o, std::string_view text) { Read(o.*member, name.letters, text); },
      [](const UniformOptions& o) { return FieldOf(NumberText(static_cast<double>(o.*member))); },
      has,
      has};
}

constexpr std::array<Key<UniformOptions>, 8> kUniformKeys{{
    {"bits", "word", &SetBits, &BitsOf, nullptr, &IsAlways},
    RuleKey<"c", &UniformBits::c>(&ByEntropy),
    RuleKey<"sample", &UniformBits::sample>(&ByEntropy),
    RuleKey<"fraction", &UniformBits::fraction>(&ByEntropy),
    RuleKey<"c0", &UniformBits::c0>(&ByGradient),
    RuleKey<"c1", &UniformBits::c1>(&ByGradient),
    ChoiceKey<"coding", &UniformOptions::coding, kUniformCodings>(&IsAlways),
    ChoiceKey<"results", &UniformOptions::results, kUniformResults>(),
}};
constexpr Keys<UniformOptions> kUniform{"uniform", kUniformKeys};

}  // namespace

SharedCodec Uniform::Make(CodecWords& words, const RoundingOptions& random) {
  UniformOptions options;
  (void)words.Take(kUniform, options);
  words.End(kUniform.owner, NamesOf(kUniform, options));
  return std::make_shared<Uniform>(options, options.coding, random, options.results);
}

std::string Uniform::name() const {
  return "uniform" + TextOfKeys(kUniform, {rule_, coding_, results_}, {});
}

std::string Uniform::text() const {
  if (rule_.rule != UniformBits::Rule::entropy) return name();
  return name() + " random_bits=" + std::to_string(random_.random_bits);
}

int Uniform::MostBits() const {
  switch (rule_.rule) {
    case UniformBits::Rule::fixed:
      return rule_.bits;
    case UniformBits::Rule::entropy:
      return WholeBits(rule_.sample + rule_.c);
    default:
      return kMostBits;
  }
}

int64_t Uniform::MostBytes(int64_t n, int64_t /*before*/) const {
  const int width = MostBits() + 1;
  const int64_t rest = n % kPackage;
  return n / kPackage * PackageBytes(kPackage, width) + (rest == 0 ? 0 : PackageBytes(rest, width));
}

int64_t Uniform::block() const { return kPackage; }

int64_t Uniform::EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* state,
                          const float* x, uint8_t* to) const {
  const auto& layer = dynamic_cast<const UniformState&>(*state);
  const std::span all(to, static_cast<size_t>(MostBytes(piece.n)));
  std::vector<float> buffer(piece.shift == 0 ? 0
                                             : static_cast<size_t>(std::min(piece.n, kPackage)));
  int64_t used = 0;
  Guarded([&] {
    const UniformBins bins(layer.least(), layer.greatest(), layer.bits());
    for (int64_t i = 0; i < piece.n; i += kPackage) {
      const PieceHead head{.n = std::min(kPackage, piece.n - i),
                           .bits = layer.bits(),
                           .least = layer.least(),
                           .greatest = layer.greatest()};
      const float* const values = Shifted(piece.shift, head.n, x + i, buffer.data());
      used += PutPackage(bins, head, coding_ == Coding::huffman, values,
                         all.subspan(static_cast<size_t>(used)));
    }
  });
  return used;
}

void Uniform::DecodeOn(const Queue& /*queue*/, std::span<const uint8_t> bytes, int64_t n, int shift,
                       float divisor, float* y, int64_t /*before*/) const {
  Guarded([&] {
    for (int64_t i = 0; i < n; i += kPackage) {
      const int64_t used = ReadPackage(bytes, std::min(kPackage, n - i), shift, divisor, y + i);
      bytes = bytes.subspan(static_cast<size_t>(used));
    }
  });
  if (!bytes.empty()) {
    throw DamagedBytes(std::to_string(bytes.size()) + " bytes follow the packages of " +
                       std::to_string(n) + " values");
  }
}

std::unique_ptr<CodecState> Uniform::MakeState(int64_t /*size*/) const {
  return std::make_unique<UniformState>(rule_, random_);
}

SharedCodec Uniform::ForResults(const Format& /*format*/, int /*world*/) const {
  if (results_ == Results::exact) return nullptr;
  return std::make_shared<Blockwise>(std::make_shared<Uniform>(rule_, coding_, random_), random_,
                                     block());
}

}  // namespace cpd
