// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes a tensor with QSGD in 4 bits. Then sums tensors over four ranks, which are
// threads of this program, and checks that virtual ranks give the same sum.
#include <cpd/cpd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 4;
constexpr std::int64_t kValues = 100'000;

std::vector<float> GradientOf(int rank) {
  std::vector<float> x(kValues);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::sin(0.01F * static_cast<float>(i) + static_cast<float>(rank));
  }
  return x;
}

double RelativeError(const std::vector<double>& exact, const std::vector<float>& got) {
  double errors = 0;
  double squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    errors += std::pow(got[i] - exact[i], 2);
    squares += std::pow(exact[i], 2);
  }
  return std::sqrt(errors / squares);
}

constexpr cpd::TensorOptions kCall{.seed = 1};

}  // namespace

int main() {
  const cpd::SharedCodec codec = cpd::MakeCodec("qsgd bits=4 bucket=512");

  const std::vector<float> x = GradientOf(0);
  const std::vector<std::uint8_t> bytes =
      cpd::EncodeStream(codec, nullptr, {.key = {.seed = 1}}, x);
  const cpd::DecodedStream decoded = cpd::DecodeStream(bytes);
  const double alone = RelativeError({x.begin(), x.end()}, decoded.values);
  std::printf("%s: %.2f bits a value, relative error %.3f\n", decoded.info.codec.c_str(),
              8.0 * static_cast<double>(decoded.info.bytes) / kValues, alone);

  cpd::Reduce spec;
  spec.wire = codec;
  spec.format = codec->format();
  std::vector<std::vector<float>> sums(kRanks, std::vector<float>(kValues));
  std::int64_t sent = 0;  // bytes that rank 0 sends
  std::vector<std::thread> threads;
  auto ends = cpd::LocalTransports(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r, end = std::move(ends[static_cast<std::size_t>(r)])]() mutable {
      cpd::Communicator communicator(std::move(end), {});
      const std::vector<float> mine = GradientOf(r);
      const cpd::TensorView in = cpd::View(mine);
      const cpd::TensorView out = cpd::View(sums[static_cast<std::size_t>(r)]);
      const auto report =
          communicator.AllReduce(std::span(&in, 1), std::span(&out, 1), spec, false, kCall);
      if (r == 0) sent = report.traffic.bytes_sent;
    });
  }
  for (std::thread& thread : threads) thread.join();

  cpd::VirtualReduce reduce(spec, kRanks, {kValues}, kCall);
  std::vector<double> exact(kValues);
  for (const int r : reduce.schedule()) {
    const std::vector<float> one = GradientOf(r);
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += one[i];
    reduce.Contribute(0, cpd::View(one));
    reduce.EndRank();
  }
  std::vector<float> expected(kValues);
  reduce.Result(0, cpd::View(expected));

  const double plain = 2.0 * (kRanks - 1) / kRanks * 4 * kValues;  // bytes sent in fp32
  std::printf("sum over %d ranks: %.1f times fewer bytes than in fp32, relative error %.3f\n",
              kRanks, plain / static_cast<double>(sent), RelativeError(exact, sums[0]));
  bool as_expected = alone < 0.2;
  for (const std::vector<float>& sum : sums) as_expected = as_expected && sum == expected;
  return as_expected ? EXIT_SUCCESS : EXIT_FAILURE;
}
