// SPDX-License-Identifier: Apache-2.0
//
// Averages a tensor over MPI's ranks by an all-reduce in e4m3 with APS. Prints the bytes that were
// sent and checks that virtual ranks give the same bits. Without mpirun there is one rank.
#include <cpd/cpd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

namespace {

constexpr std::int64_t kValues = 100'000;

std::vector<float> GradientOf(int rank) {
  std::vector<float> x(kValues);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 1e-3F * std::sin(0.01F * static_cast<float>(i) + static_cast<float>(rank));
  }
  return x;
}

std::vector<float> OverVirtualRanks(const cpd::Reduce& spec, int world) {
  cpd::VirtualReduce reduce(spec, world, {kValues});
  for (int rank = 0; rank < world; ++rank) {
    std::vector<float> x = GradientOf(rank);
    reduce.Observe(0, cpd::View(x));
  }
  for (const int rank : reduce.schedule()) {
    std::vector<float> x = GradientOf(rank);
    reduce.Contribute(0, cpd::View(x));
    reduce.EndRank();
  }
  std::vector<float> average(kValues);
  reduce.Result(0, cpd::View(average));
  return average;
}

int Run() {
  cpd::Communicator comm(cpd::MpiTransport(), {});
  const cpd::Reduce spec = cpd::ParseReduce("e4m3 aps average");
  std::vector<float> x = GradientOf(comm.rank());
  std::vector<float> average(kValues);
  const std::array from{cpd::View(x)};
  const std::array to{cpd::View(average)};
  const cpd::ReduceReport report = comm.AllReduce(from, to, spec);
  const std::vector<float> expected = OverVirtualRanks(spec, comm.size());
  const bool same = std::memcmp(average.data(), expected.data(), 4 * kValues) == 0;
  if (comm.rank() == 0) {
    std::printf("%d ranks, %lld bytes sent by each, the bits of virtual ranks: %s\n", comm.size(),
                static_cast<long long>(report.traffic.bytes_sent), same ? "yes" : "no");
  }
  return same ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
