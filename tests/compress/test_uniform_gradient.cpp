// SPDX-License-Identifier: Apache-2.0
//
// Tests uniform bins whose number of bits depends on a gradient. The caller sets the gradient in
// the states.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Floats = std::vector<float>;

Floats Values(std::size_t n) {
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = std::sin(static_cast<float>(i * i)) / static_cast<float>(1 + i % 7);
  }
  return x;
}

TEST(UniformByGradient, BitsByTheGradient) {
  const Floats x = Values(100);
  const auto codec = MakeCodec("uniform bits=gradient c0=1 c1=6.5");
  EXPECT_TRUE(codec->needs_gradient());
  EXPECT_FALSE(MakeCodec("uniform")->needs_gradient());
  CodecStates states;
  const auto bits = [&](int rank, std::int64_t number) {
    CodecState* const state = states.Of(*codec, {rank, number}, 100);
    state->Begin({.n = 100}, x.data());
    return *state->ChosenBits();
  };
  EXPECT_THROW(bits(0, 3), Error);
  states.SetGradient(3, {}, 3);
  EXPECT_EQ(bits(0, 3), 9);
  EXPECT_EQ(bits(1, 3), 9);
  EXPECT_THROW(bits(0, 4), Error);
  states.SetGradient(3, 1, 1e30F);
  EXPECT_EQ(bits(0, 3), 9);
  EXPECT_EQ(bits(1, 3), 30);
  states.SetGradient(3, {}, 0);  // of all ranks again
  EXPECT_EQ(bits(0, 3), 7);
  EXPECT_EQ(bits(1, 3), 7);
  states.SetGradient(4, 0, 1);
  EXPECT_TRUE(states.Save().empty());
  EXPECT_EQ(states.gradients(), (CodecStates::Gradients{{{3, {}}, 0}, {{4, 0}, 1}}));
  states.Reset(3);
  EXPECT_THROW(bits(1, 3), Error);
  EXPECT_EQ(bits(0, 4), 8);
  EXPECT_THROW(bits(1, 4), Error);
  for (const float wrong : {-1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(states.SetGradient(4, {}, wrong), Error) << wrong;
  }
  states.Reset();
  EXPECT_TRUE(states.gradients().empty());
}

TEST(UniformByGradient, InnerCodecsGetTheGradient) {
  const Floats x = Values(1000);
  const Piece whole{.n = 1000, .size = 1000};
  for (const std::string text :
       {"feedback uniform bits=gradient c1=5", "top_k 1 uniform bits=gradient c1=5"}) {
    const auto codec = MakeCodec(text);
    EXPECT_TRUE(codec->needs_gradient()) << text;
    const auto state = codec->MakeState(1000);
    EXPECT_THROW(state->Begin(whole, x.data()), Error);
    state->SetGradient(3);
    state->Begin(whole, x.data());
    Floats y(x.size()), expected(x.size());
    codec->Round(whole, state.get(), x.data(), y.data());
    const auto seven = MakeCodec("uniform bits=7");
    const auto begun = seven->MakeState(1000);
    begun->Begin(whole, x.data());
    seven->Round(whole, begun.get(), x.data(), expected.data());
    EXPECT_EQ(expected, y) << text;
  }
  EXPECT_THROW(MakeCodec("blockwise uniform bits=gradient"), Error);
}

}  // namespace
}  // namespace cpd
