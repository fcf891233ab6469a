// SPDX-License-Identifier: Apache-2.0
//
// The main function of the C++ tests. A program contains the tests of several sources, and has a
// name for each source: under that name it runs only the tests of that source. Under its own name,
// such as test_ops_cast_and_others, it runs all its tests. Under any other name it fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace {

/// Returns the name of a source's test program: "test_ops_cast" for ".../tests/ops/test_cast.cpp".
std::string program_of(std::string source) {
  constexpr std::string_view kFolder = "/tests/";
  if (const auto at = source.rfind(kFolder); at != std::string::npos) {
    source.erase(0, at + kFolder.size());
  }
  source.resize(source.rfind('.'));
  const std::size_t name = source.rfind('/') + 1;
  if (source.compare(name, 5, "test_") == 0) source.erase(name, 5);
  std::replace(source.begin(), source.end(), '/', '_');
  return "test_" + source;
}

/// Returns true if a program of this name runs the tests of all its sources. Such a name ends in
/// `_and_others` (several sources) or `_on_cpu` (tests of the CUDA emulation).
bool names_all(const std::string& program) {
  for (const std::string_view end : {"_and_others", "_on_cpu"}) {
    if (program.size() <= end.size()) continue;
    if (program.compare(program.size() - end.size(), end.size(), end) == 0) return true;
  }
  return false;
}

/// Returns a filter for the tests in the source that the program is named for. Returns "" if the
/// program is not named for a source.
std::string filter_of(const std::string& program) {
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      if (program_of(test.file()) != program) continue;
      filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (std::string& filter = ::testing::GTEST_FLAG(filter); filter == "*") {
    std::string program = argv[0];
    program.erase(0, program.rfind('/') + 1);
    if (!names_all(program)) filter = filter_of(program);
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no test source has this name\n", program.c_str());
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
