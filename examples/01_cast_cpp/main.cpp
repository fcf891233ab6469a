// SPDX-License-Identifier: Apache-2.0
//
// Rounds a few numbers to E4M3: to nearest, to nearest with saturation, and stochastically. Also
// rounds them to NVFP4, in which blocks of values share a scale, and encodes them as codes and
// scales.
#include <cpd/cpd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

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
  cpd::Cast(view(x), format, {.mode = cpd::Rounding::stochastic}, view(stochastic), {.seed = 1});

  const cpd::Scaled nvfp4 = cpd::ParseScaled("nvfp4");
  const cpd::RoundingOptions rounding{.overflow = cpd::Overflow::saturate};
  constexpr int kAxis = -1;
  std::array<float, 6> scaled{};
  cpd::Cast(view(x), nvfp4, kAxis, rounding, view(scaled));

  const std::array<std::int64_t, 1> shape = {6};
  const cpd::ScaleCounts counts = cpd::CountScales(nvfp4, shape, kAxis);
  const auto bytes = [](const cpd::Format& f, std::int64_t n) {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(cpd::PackedBytes(f, n)));
  };
  const auto codes_of = [](std::vector<std::uint8_t>& v) {
    return cpd::View(v.data(), cpd::DType::u8, static_cast<std::int64_t>(v.size()));
  };
  auto codes = bytes(nvfp4.element, 6);
  auto scales = bytes(nvfp4.scale, counts.blocks);
  auto tensor = bytes(*nvfp4.tensor_scale, counts.tensor);
  const cpd::TensorView second = codes_of(tensor);
  cpd::Encode(view(x), nvfp4, kAxis, rounding, codes_of(codes), codes_of(scales), &second);
  std::array<float, 6> decoded{};
  cpd::Decode(codes_of(codes), nvfp4, kAxis, codes_of(scales), &second, view(decoded));

  std::printf("%12s %12s %12s %12s %12s\n", "x", "nearest", "saturated", "stochastic", "nvfp4");
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::printf("%12g %12g %12g %12g %12g\n", x[i], nearest[i], saturated[i], stochastic[i],
                scaled[i]);
  }

  // The E4M3 numbers near 3.14 are 3, 3.25 and 3.5; the largest E4M3 number is 240.
  const bool as_expected =
      nearest[2] == 3.25f && saturated[5] == 240.0f && scaled[5] == 1000.0f && decoded == scaled;
  return as_expected ? EXIT_SUCCESS : EXIT_FAILURE;
}
