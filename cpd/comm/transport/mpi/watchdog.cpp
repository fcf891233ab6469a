// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/transport/mpi/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cpd/base/quiet_thread.h"

namespace cpd {

void MpiCall::Watch(double timeout) {
  constexpr double least = 30;
  constexpr double most = 1e6;
  const int patience = static_cast<int>(std::ceil(std::clamp(timeout, least, most)));
  int before = patience_;
  while (before < patience && !patience_.compare_exchange_weak(before, patience)) {
  }
  if (before == 0) StartQuietThread(Look);
}

void MpiCall::Look() {
  std::uint64_t returned = 0;
  // Counts passes through this loop, one a second, instead of reading a clock. So the time in which
  // the process is stopped (SIGSTOP) does not count.
  for (int turns = 0; turns < patience_;) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const bool is_stuck = inside_ > 0 && returned_ == returned;
    turns = is_stuck ? turns + 1 : 0;
    returned = returned_;
  }
  std::fprintf(stderr,
               "cpd: a call to MPI did not return in %d s (was a rank lost?); no other way leads "
               "out of it: this process ends\n",
               patience_.load());
  std::_Exit(1);
}

}  // namespace cpd
