// SPDX-License-Identifier: Apache-2.0
//
// Functions that the benchmark programs share: options, memory, and timing. A row and the baseline
// that it is compared to are timed alternately. A row is printed as one line with a JSON object.
#pragma once

#include <fnmatch.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/backend/kernel_table.h"
#include "cpd/spec/error.h"

namespace timing {

struct Settings {
  std::int64_t floats = std::int64_t{64} << 20;
  int repeats = 9;
  std::uint64_t seed = 0;
  std::vector<std::string> only;  ///< patterns of fnmatch(3); empty: every row
  bool list = false;
};

/// Parses the options [--floats N] [--repeats R] [--seed S] [--only PATTERN]... [--list].
inline Settings Parse(int argc, char** argv) {
  Settings settings;
  settings.seed = std::random_device()();
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) throw cpd::Error(std::string(flag) + " needs a value");
      return argv[i];
    };
    if (flag == "--floats") {
      settings.floats = std::stoll(value());
    } else if (flag == "--repeats") {
      settings.repeats = std::stoi(value());
    } else if (flag == "--seed") {
      settings.seed = std::stoull(value());
    } else if (flag == "--only") {
      settings.only.push_back(value());
    } else if (flag == "--list") {
      settings.list = true;
    } else {
      throw cpd::Error("unknown option '" + std::string(flag) +
                       "'; allowed: --floats --repeats --seed --only --list");
    }
  }
  if (settings.floats < cpd::kBlock || settings.repeats < 1) {
    throw cpd::Error("--floats must be at least 256 and --repeats at least 1");
  }
  return settings;
}

/// Aligned memory. All pages have been written once, so that timing does not include page faults.
class Memory {
 public:
  explicit Memory(std::size_t bytes)
      : data_(static_cast<std::uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_.get(), 1, bytes);
  }
  [[nodiscard]] std::uint8_t* bytes() const { return data_.get(); }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(data_.get()); }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<std::uint8_t, Free> data_;
};

inline volatile float g_plain;  ///< a sum that is never read, so that it is not optimized away

/// Reads the array once and adds its values lane by lane.
inline void PlainSum(const float* x, std::int64_t n) {
  using Lanes = float __attribute__((vector_size(64)));
  std::array<Lanes, 4> sums{};
  for (std::int64_t i = 0; i + 64 <= n; i += 64) {
    for (std::size_t j = 0; j < sums.size(); ++j) {
      Lanes lanes;
      std::memcpy(&lanes, x + i + 16 * j, sizeof(lanes));
      sums[j] += lanes;
    }
  }
  const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0;
  for (int lane = 0; lane < 16; ++lane) total += all[lane];
  g_plain = total;
}

/// Returns code number i of packed codes.
inline std::uint32_t CodeAt(const std::uint8_t* packed, int bits, std::int64_t i) {
  std::uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    const std::int64_t at = i * bits + b;
    code |= static_cast<std::uint32_t>(packed[at / 8] >> (at % 8) & 1) << b;
  }
  return code;
}

/// A function to time. Its rate counts `bytes` bytes for each call.
struct Side {
  std::function<void()> work;
  double bytes = 0;
};

/// The medians of the rates of a benchmark row and of its baseline, the median of the ratios of all
/// turns, and the range of these ratios. `best` is the best rate of the row by processor time,
/// which excludes the time that other processes took.
struct Timing {
  double rate, baseline, ratio, least, most, best;
};

inline double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Returns the processor time of this thread in seconds.
inline double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The measurements of a benchmark row: the rate of each turn by the wall clock, and the best rate
/// of all turns by processor time.
struct Turns {
  std::vector<double> rates;
  double best = 0;

  void Add(const Side& row) {
    const double begin = ProcessorSeconds();
    rates.push_back(row.bytes / Seconds(row.work) * 1e-9);
    best = std::max(best, row.bytes / (ProcessorSeconds() - begin) * 1e-9);
  }
};

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Times a benchmark row and its baseline alternately. Returns rates in GB/s.
inline Timing Time(const Side& row, const Side& baseline, int repeats) {
  Turns turns;
  std::vector<double> baselines;
  std::vector<double> ratios;
  for (int r = 0; r < repeats; ++r) {
    baselines.push_back(baseline.bytes / Seconds(baseline.work) * 1e-9);
    turns.Add(row);
    ratios.push_back(turns.rates.back() / baselines.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return {Median(turns.rates), Median(baselines), Median(ratios), *least, *most, turns.best};
}

/// Times a benchmark row that has no baseline. Returns rates in GB/s; the ratio is the rate divided
/// by 1 GB/s.
inline Timing Alone(const Side& row, int repeats) {
  Turns turns;
  for (int r = 0; r < repeats; ++r) turns.Add(row);
  const auto [least, most] = std::minmax_element(turns.rates.begin(), turns.rates.end());
  const double rate = Median(turns.rates);
  return {rate, 1, rate, *least, *most, turns.best};
}

/// Returns whether a row's name matches one of the patterns in the settings.
inline bool Wants(const Settings& settings, const std::string& name) {
  const auto matches = [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  return settings.only.empty() || std::ranges::any_of(settings.only, matches);
}

/// Returns the benchmark rows whose names match the patterns in the settings. With --list, prints
/// the names instead and returns no rows.
template <class Row>
std::vector<Row> Chosen(std::vector<Row> rows, const Settings& settings) {
  std::erase_if(rows, [&](const Row& row) { return !Wants(settings, row.name); });
  if (!settings.list) return rows;
  for (const Row& row : rows) std::printf("%s\n", row.name.c_str());
  return {};
}

/// Fills x with normally distributed values, which repeat after about a million values.
inline void FillNormal(std::uint64_t seed, std::int64_t n, float* x) {
  std::mt19937 bits(static_cast<std::uint32_t>(seed));
  std::normal_distribution<float> normal;
  const std::int64_t drawn = std::min<std::int64_t>(n, (std::int64_t{1} << 20) + 17);
  for (std::int64_t i = 0; i < n; ++i) x[i] = i < drawn ? normal(bits) : x[i - drawn];
}

/// Bytes for each element of a benchmark row's arrays. The row's rate counts `counted` bytes; the
/// loop reads and writes at least `moved` bytes.
struct Element {
  double counted, moved;
};

inline void Print(const std::string& name, const char* against, const std::string& backend,
                  const Timing& t, std::optional<double> bar, Element element) {
  std::printf(R"({"name": "%s", "value": %.3f, "unit": "GB/s", "against": "%s", )"
              R"("baseline": %.3f, "ratio": %.4f, "least": %.4f, "most": %.4f, "best": %.3f, )"
              R"("backend": "%s", "counted": %.4g, "moved": %.4g)",
              name.c_str(), t.rate, against, t.baseline, t.ratio, t.least, t.most, t.best,
              backend.c_str(), element.counted, element.moved);
  if (bar) std::printf(R"(, "bar": %.2f)", *bar);
  std::printf("}\n");
  std::fflush(stdout);
}
inline void PrintWrong(const std::string& name, const std::string& wrong) {
  std::printf("{\"name\": \"%s\", \"wrong\": \"%s\"}\n", name.c_str(), wrong.c_str());
}

/// Runs a benchmark program: calls `run` and returns the exit status. `run` must return false if
/// bits are wrong; the exit status is then 1.
inline int Guarded(const char* program, const std::function<bool()>& run) {
  setenv("CPD_NUM_THREADS", "1", 1);  // before the library first asks
  try {
    return run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 2;
  }
}

}  // namespace timing
