// SPDX-License-Identifier: Apache-2.0
//
// Rounds a few numbers into E4M3: to nearest, to nearest with saturation, and stochastically.
#include <cpd/cpd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main() {
  const cpd::Format format = cpd::ParseFormat("e4m3");
  const std::array<float, 6> x = {0.1f, 1.0f, 3.14159265f, -0.001f, 239.0f, 1000.0f};
  std::array<float, 6> nearest{};
  std::array<float, 6> saturated{};
  std::array<float, 6> stochastic{};
  const auto view = [](const auto& a) {
    return cpd::View(a.data(), cpd::DType::f32, static_cast<std::int64_t>(a.size()));
  };

  cpd::Cast(view(x), format, {}, view(nearest));
  cpd::Cast(view(x), format, {.overflow = cpd::Overflow::saturate}, view(saturated));
  cpd::Cast(view(x), format, {.mode = cpd::Rounding::stochastic, .seed = 1}, view(stochastic));

  std::printf("%12s %12s %12s %12s\n", "x", "nearest", "saturated", "stochastic");
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::printf("%12g %12g %12g %12g\n", x[i], nearest[i], saturated[i], stochastic[i]);
  }

  // E4M3's numbers near 3.14 are 3, 3.25, 3.5; its largest is 240.
  const bool as_expected = nearest[2] == 3.25f && saturated[5] == 240.0f;
  return as_expected ? EXIT_SUCCESS : EXIT_FAILURE;
}
