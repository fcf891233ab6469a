// SPDX-License-Identifier: Apache-2.0
//
// The options of bench_all_reduce's ranks, the measurements that the ranks take together, and the
// rows of results.
#pragma once

#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/resnet50.h"
#include "cpd/comm/all_reduce.h"
#include "cpd/spec/error.h"

namespace all_reduce {

struct Settings {
  std::int64_t values = resnet50::kValues;
  int repeats = 9;
  std::uint64_t seed = 0;
  std::string parts = "formats,codecs,exchanges,figure11";
  std::string setting = "mpi";
  std::string interface;
  double gbps = 0;  ///< 0: no limit that is known
  std::int64_t chunk = cpd::CommOptions{}.chunk;
};

inline Settings Parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (++i == argc) throw cpd::Error(std::string(flag) + " needs a value");
    const std::string value = argv[i];
    if (flag == "--values") {
      settings.values = std::stoll(value);
    } else if (flag == "--repeats") {
      settings.repeats = std::stoi(value);
    } else if (flag == "--seed") {
      settings.seed = std::stoull(value);
    } else if (flag == "--parts") {
      settings.parts = value;
    } else if (flag == "--setting") {
      settings.setting = value;
    } else if (flag == "--interface") {
      settings.interface = value;
    } else if (flag == "--gbps") {
      settings.gbps = std::stod(value);
    } else if (flag == "--chunk") {
      settings.chunk = std::stoll(value);
    } else {
      throw cpd::Error("unknown option '" + std::string(flag) +
                       "'; allowed: --values --repeats --seed --parts --setting --interface --gbps "
                       "--chunk");
    }
  }
  if (settings.values < 1 || settings.repeats < 1) {
    throw cpd::Error("--values and --repeats must be at least 1");
  }
  return settings;
}

// --- the ranks -----------------------------------------------------------------------------------

inline int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int World() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
inline void Barrier() { MPI_Barrier(MPI_COMM_WORLD); }

/// Returns the element-wise maximum over all ranks of an array.
template <std::size_t kCount>
std::array<double, kCount> Largest(std::array<double, kCount> values) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(kCount), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
  return values;
}
inline double Largest(double value) { return Largest(std::array{value})[0]; }

inline bool AllSay(bool yes) { return Largest(yes ? 0.0 : 1.0) == 0; }

inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the CPU time of all threads of this process, in user and kernel mode, in seconds.
inline double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The bytes that a network interface of this process's namespace has sent and received.
struct Counters {
  double sent = 0, received = 0;
};
inline double CounterOf(const std::string& interface, const char* name) {
  const std::string path = "/sys/class/net/" + interface + "/statistics/" + name;
  double value = 0;
  if (!(std::ifstream(path) >> value)) throw cpd::Error("cannot read " + path);
  return value;
}
inline Counters ReadCounters(const std::string& interface) {
  if (interface.empty()) return {};
  return {CounterOf(interface, "tx_bytes"), CounterOf(interface, "rx_bytes")};
}

// --- rows ----------------------------------------------------------------------------------------

/// Prints one JSON object, on rank 0 only.
class Line {
 public:
  explicit Line(const std::string& name) : text_("{\"name\": \"" + name + "\"") {}
  Line& Add(const char* key, const std::string& value) {
    text_ += ", \"" + std::string(key) + "\": \"" + value + "\"";
    return *this;
  }
  Line& Add(const char* key, double value, int digits = 4) {
    std::array<char, 64> number{};
    std::snprintf(number.data(), number.size(), "%.*f", digits, value);
    text_ += ", \"" + std::string(key) + "\": " + number.data();
    return *this;
  }
  void Print() const {
    if (Rank() != 0) return;
    std::printf("%s}\n", text_.c_str());
    std::fflush(stdout);
  }

 private:
  std::string text_;
};

}  // namespace all_reduce
