// SPDX-License-Identifier: Apache-2.0
//
// Starts threads that receive no signals. A program's signal handlers then run on its own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace cpd {

/// Runs a function in a detached thread that blocks all signals. Throws std::system_error if the
/// system does not start the thread.
template <class Function>
void StartQuietThread(Function function) {
  struct WithoutSignals {
    WithoutSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const WithoutSignals inherited;
  std::thread(std::move(function)).detach();
}

}  // namespace cpd
