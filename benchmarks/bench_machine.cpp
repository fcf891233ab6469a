// SPDX-License-Identifier: Apache-2.0
//
// Measures the limits of the machine: the rate of vector operations on registers, of each kind and
// in mixtures, for each instruction set that runs here; and the bandwidth of memory. Prints one
// JSON object on each line: `machine/<isa>/<kind>` and `machine/<isa>/<mixture>` in 10^9 operations
// a second, the maximum of all turns; and `machine/<operation>` in GB/s, the median.
//
//   bench_machine [--mix "mul=3 add=2 integer=2"]... [timing.h's options]
//
// The kinds in a mixture are the operations of assembler.h and four pairs of operations that
// alternate: mul (product, fma), add (sum, max), integer (integer_sum, logic), directed (fma_down,
// sum_down).
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "benchmarks/assembler.h"
#include "benchmarks/timing.h"
#include "cpd/backend/roster.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

using timing::Memory;
using timing::Settings;

#if defined(__clang__)
constexpr const char* kCompiler = "Clang";
#else
constexpr const char* kCompiler = "GCC";
#endif

void PrintRate(const std::string& name, double value, const char* unit) {
  std::printf(R"({"name": "machine/%s", "value": %.3f, "unit": "%s"})"
              "\n",
              name.c_str(), value, unit);
  std::fflush(stdout);
}

// --- issue ---------------------------------------------------------------------------------------

#if defined(__x86_64__)

using assembler::Isa;
using assembler::Operation;
using Sequence = std::vector<const Operation*>;

constexpr int kBody = 192;  ///< operations of a loop's body; they fit any cache of decoded ones

/// Returns the names of the operations of a kind: for "mul", the names "product" and "fma". If
/// `kind` is itself the name of an operation, returns this name alone.
std::vector<std::string> Parts(const std::string& kind) {
  static const std::map<std::string, std::vector<std::string>> kPairs = {
      {"mul", {"product", "fma"}},
      {"add", {"sum", "max"}},
      {"integer", {"integer_sum", "logic"}},
      {"directed", {"fma_down", "sum_down"}},
  };
  const auto pair = kPairs.find(kind);
  return pair == kPairs.end() ? std::vector{kind} : pair->second;
}

/// Returns true if this CPU has the operation in vectors of this instruction set.
bool Has(Isa isa, const Operation& operation) {
  if (operation.bf16 && __builtin_cpu_supports("avx512bf16") == 0) return false;
  return isa == Isa::avx512 || !operation.evex_only;
}

/// Parses a mixture, for example "mul=3 add=2": a count for each kind.
std::vector<std::pair<const Operation*, double>> Counts(const std::string& text) {
  std::vector<std::pair<const Operation*, double>> counts;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) throw cpd::Error("a mixture is KIND=COUNT …, not " + text);
    const std::vector<std::string> parts = Parts(word.substr(0, equals));
    for (const std::string& part : parts) {
      const auto* const found = std::ranges::find(assembler::kOperations, part, &Operation::name);
      if (found == assembler::kOperations.end()) throw cpd::Error("no operation is called " + part);
      counts.emplace_back(found,
                          std::stod(word.substr(equals + 1)) / static_cast<double>(parts.size()));
    }
  }
  return counts;
}

/// Returns kBody operations in the proportions of the mixture, with each kind spread evenly.
Sequence Spread(const std::vector<std::pair<const Operation*, double>>& counts) {
  double all = 0;
  for (const auto& [operation, count] : counts) all += count;
  std::vector<double> owed(counts.size());
  Sequence sequence;
  for (int i = 0; i < kBody; ++i) {
    for (std::size_t j = 0; j < counts.size(); ++j) owed[j] += counts[j].second / all;
    const auto most = std::ranges::max_element(owed) - owed.begin();
    owed[static_cast<std::size_t>(most)] -= 1;
    sequence.push_back(counts[static_cast<std::size_t>(most)].first);
  }
  return sequence;
}

/// Times a loop of one operation or mixture in turns of about 1 ms. Its rate is the rate of the
/// fastest turn.
class Kind {
 public:
  Kind(std::string name, Isa isa, const Sequence& sequence)
      : name_(std::move(name)), loop_(isa, sequence) {}

  void Turn() {
    least_ = std::min(least_, timing::Seconds([&] { loop_.Run(kTurns); }));
  }
  void Print() const {
    PrintRate(name_, static_cast<double>(kBody) * kTurns / least_ * 1e-9, "Gop/s");
  }

 private:
  static constexpr std::int64_t kTurns = 40'000;
  std::string name_;
  assembler::Loop loop_;
  double least_ = std::numeric_limits<double>::infinity();
};

std::vector<std::unique_ptr<Kind>> Kinds(const std::vector<std::string>& mixtures) {
  std::vector<std::unique_ptr<Kind>> kinds;
  for (const cpd::KernelTable* table : cpd::AvailableKernels()) {
    const std::string name = table->name;
    if (name != "avx2" && name != "avx512") continue;
    const Isa isa = name == "avx512" ? Isa::avx512 : Isa::avx2;
    const auto add = [&](const std::string& what, const Sequence& sequence) {
      kinds.push_back(std::make_unique<Kind>(name + "/" + what, isa, sequence));
    };
    for (const Operation& operation : assembler::kOperations) {
      if (!Has(isa, operation)) continue;
      add(std::string(operation.name), Sequence(kBody, &operation));
    }
    for (const std::string& text : mixtures) {
      const auto counts = Counts(text);
      const auto runs = [&](const auto& part) { return Has(isa, *part.first); };
      if (std::ranges::all_of(counts, runs)) add(text, Spread(counts));
    }
    if (table == &cpd::Kernels()) break;  // wider vectors may lower the clock
  }
  return kinds;
}

/// Measures and prints the rates of all operations and mixtures. They are timed alternately, so
/// that a change of the clock rate affects all alike.
void PrintIssue(const std::vector<std::string>& mixtures, int repeats) {
  const auto kinds = Kinds(mixtures);
  for (int r = 0; r < 3 * repeats; ++r) {
    for (const auto& kind : kinds) kind->Turn();
  }
  for (const auto& kind : kinds) kind->Print();
}

#else

void PrintIssue(const std::vector<std::string>&, int) {}

#endif

// --- memory --------------------------------------------------------------------------------------

/// Writes n bytes, by non-temporal stores if the machine has them.
void Write(std::uint8_t* y, std::size_t n) {
#if defined(__SSE__)
  auto* const floats = reinterpret_cast<float*>(y);
  const __m128 ones = _mm_set1_ps(1);
  for (std::size_t i = 0; i < n / sizeof(float); i += 4) _mm_stream_ps(floats + i, ones);
  _mm_sfence();
#else
  std::memset(y, 1, n);
#endif
}

void Copy(std::uint8_t* y, const std::uint8_t* x, std::size_t n, int threads) {
  std::vector<std::jthread> others;
  const std::size_t each = n / static_cast<std::size_t>(threads);
  for (int t = 1; t < threads; ++t) {
    const std::size_t begin = static_cast<std::size_t>(t) * each;
    others.emplace_back([=] { std::memcpy(y + begin, x + begin, each); });
  }
  std::memcpy(y, x, each);
}

void PrintMemory(const Settings& settings) {
  const std::size_t n = sizeof(float) * static_cast<std::size_t>(settings.floats);
  const Memory x(n), y(n);
  const auto rate = [&](const std::string& name, double bytes, const std::function<void()>& work) {
    work();
    std::vector<double> rates;
    for (int r = 0; r < settings.repeats; ++r)
      rates.push_back(bytes / timing::Seconds(work) * 1e-9);
    PrintRate(name, timing::Median(rates), "GB/s");
  };
  const auto bytes = static_cast<double>(n);
  rate("copy", 2 * bytes, [&] { std::memcpy(y.bytes(), x.bytes(), n); });
  rate("copy/threads2", 2 * bytes, [&] { Copy(y.bytes(), x.bytes(), n, 2); });
  rate("read", bytes, [&] { timing::PlainSum(x.floats(), settings.floats); });
  rate("write", bytes, [&] { Write(y.bytes(), n); });
}

}  // namespace

int main(int argc, char** argv) {
  return timing::Guarded("bench_machine", [&] {
    std::vector<std::string> mixtures;
    std::vector<char*> others{argv[0]};
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]) == "--mix" && i + 1 < argc) {
        mixtures.emplace_back(argv[++i]);
      } else {
        others.push_back(argv[i]);
      }
    }
    const Settings settings = timing::Parse(static_cast<int>(others.size()), others.data());
    std::printf("{\"name\": \"machine/compiler\", \"value\": \"%s %s\"}\n", kCompiler, __VERSION__);
    PrintIssue(mixtures, settings.repeats);
    PrintMemory(settings);
    return true;
  });
}
