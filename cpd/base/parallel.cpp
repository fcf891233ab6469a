// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "cpd/numeric/environment.h"
#include "cpd/numeric/error.h"

#ifdef CPD_THREADS_STD
#include <thread>
#else
#include <omp.h>
#endif

namespace cpd {
namespace {

const pid_t kFirstProcess = getpid();
thread_local bool g_inside = false;
thread_local int g_ranks_on_host = 1;

int HardwareThreads() {
#ifdef CPD_THREADS_STD
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
#else
  return omp_get_max_threads();
#endif
}

bool IsNested() {
#ifndef CPD_THREADS_STD
  if (omp_in_parallel() != 0) return true;
#endif
  return g_inside;
}

/// Runs worker(0) … worker(count - 1), each in a thread of its own.
void RunThreads(int count, const std::function<void(int)>& worker) {
#ifdef CPD_THREADS_STD
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads.emplace_back(worker, i);
  for (std::thread& thread : threads) thread.join();
#else
#pragma omp parallel for num_threads(count) schedule(static, 1)
  for (int i = 0; i < count; ++i) worker(i);
#endif
}

}  // namespace

int MaxThreads() {
  const char* text = std::getenv("CPD_NUM_THREADS");
  if (text == nullptr || *text == '\0') {
    return std::max(1, HardwareThreads() / g_ranks_on_host);
  }
  char* end = nullptr;
  const long threads = std::strtol(text, &end, 10);
  if (*end != '\0' || threads < 1 || threads > 4096) {
    throw Error("CPD_NUM_THREADS must be a number from 1 to 4096, got '" + std::string(text) + "'");
  }
  return static_cast<int>(threads);
}

SharedHost::SharedHost(int ranks) : before_(g_ranks_on_host) {
  g_ranks_on_host = std::max(1, ranks);
}
SharedHost::~SharedHost() { g_ranks_on_host = before_; }

void parallel_for(std::int64_t n, std::int64_t grain, std::int64_t serial_below,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (n <= 0) return;
  const std::int64_t grains = (n + grain - 1) / grain;
  const bool serial = n <= serial_below || IsNested() || getpid() != kFirstProcess;
  const auto threads = serial ? 1 : static_cast<int>(std::min<std::int64_t>(MaxThreads(), grains));
  if (threads == 1) {
    const Environment environment;
    return body(0, n);
  }

  std::exception_ptr failure;
  std::mutex mutex;
  RunThreads(threads, [&](int i) {
    const std::int64_t begin = grains * i / threads * grain;
    const std::int64_t end = std::min(n, grains * (i + 1) / threads * grain);
    g_inside = true;
    try {
      const Environment environment;
      if (begin < end) body(begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    g_inside = false;
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace cpd
