// SPDX-License-Identifier: Apache-2.0
//
// Tests the request for huge pages: large memory gets huge pages if the system has any, and the
// contents of memory do not change.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "cpd/base/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace cpd {
namespace {

TEST(HugePages, AnyMemoryMayBeNamed) {
  errno = 17;
  AdviseHugePages(nullptr, 0);
  std::string small(100, 'x');
  AdviseHugePages(small.data(), small.size());
  AdviseHugePages(nullptr, std::size_t{64} << 20);  // not ours: the system refuses
  EXPECT_EQ(errno, 17);
  EXPECT_EQ(small, std::string(100, 'x'));
}

TEST(HugePages, WhatIsWrittenStays) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const auto memory = std::make_unique<char[]>(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<char>(i % 251);
  for (const std::size_t offset : {0, 1, 4095, 4097}) {
    AdviseHugePages(memory.get() + offset, kBytes - offset);
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kBytes; ++i) wrong += memory[i] != static_cast<char>(i % 251) ? 1 : 0;
  EXPECT_EQ(wrong, 0U);
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)
/// Returns the KiB of huge pages in the mapping that begins at `data`.
std::int64_t HugeKib(const void* data) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool here = false;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto address = reinterpret_cast<std::uintptr_t>(data);
      here = begin <= address && address < end;
    }
    if (here && line.starts_with("AnonHugePages:")) return std::atoll(line.c_str() + 14);
  }
  return -1;
}

TEST(HugePages, LargeFreshMemoryLiesOnThem) {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string choice;
  std::getline(setting, choice);
  if (choice.empty() || choice.find("[never]") != std::string::npos) {
    GTEST_SKIP() << "this system gives no huge pages";
  }
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  AdviseHugePages(data, kBytes);
  std::memset(data, 1, kBytes);
  EXPECT_GE(HugeKib(static_cast<char*>(data) + kBytes / 2), 2048);
  munmap(data, kBytes);
}
#endif

}  // namespace
}  // namespace cpd
