// SPDX-License-Identifier: Apache-2.0
//
// Returns the text of an error, for tests that compare the whole text.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace cpd::testing {

/// Returns the text of the exception that a call throws; empty if it throws none.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace cpd::testing

/// Expects that an expression throws an exception with exactly this text.
#define EXPECT_REFUSAL(text, ...) \
  EXPECT_EQ(::cpd::testing::refusal_of([&] { static_cast<void>(__VA_ARGS__); }), text)
