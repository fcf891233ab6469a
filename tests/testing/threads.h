// SPDX-License-Identifier: Apache-2.0
//
// Sets the number of the library's threads.
#pragma once

#include <cstdlib>

namespace cpd::testing {

/// Sets CPD_NUM_THREADS to `count` while the object lives.
class WithThreads {
 public:
  explicit WithThreads(const char* count) { setenv("CPD_NUM_THREADS", count, 1); }
  ~WithThreads() { unsetenv("CPD_NUM_THREADS"); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;
};

}  // namespace cpd::testing
