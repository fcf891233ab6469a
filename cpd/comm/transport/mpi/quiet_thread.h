// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace cpd {

/// Runs a function in a thread that nobody waits for; signals are for the other threads.
template <class Function>
void StartQuietThread(Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(function)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace cpd
