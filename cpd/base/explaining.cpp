// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/explaining.h"

#include <algorithm>
#include <utility>

namespace cpd {
namespace {

thread_local Explaining* t_explaining = nullptr;

/// The first address that Place returns. It is above all addresses of a process, so a tensor
/// without memory cannot overlap a tensor with memory.
constexpr std::uintptr_t kFirstPlace = std::uintptr_t{1} << 56;

}  // namespace

namespace detail {
std::atomic<int> g_explaining{0};
}

Explaining::Explaining(int gpu)
    : gpu_(gpu), next_(kFirstPlace), before_(std::exchange(t_explaining, this)) {
  ++detail::g_explaining;
}
Explaining::~Explaining() {
  --detail::g_explaining;
  t_explaining = before_;
}

Explaining* Explaining::OfThread() { return t_explaining; }

void Explaining::Begin(const char* function, std::string path, std::string why) {
  Explanation& step = steps_.emplace_back();
  step.function = function;
  step.path = std::move(path);
  step.why = std::move(why);
}

void Explaining::Run(std::string backend, std::string kernel, std::vector<std::int64_t> tile) {
  if (steps_.empty()) return;
  Explanation& step = steps_.back();
  step.backend = std::move(backend);
  step.kernel = std::move(kernel);
  step.tile = std::move(tile);
}

void Explaining::Take(int threads) {
  if (!steps_.empty()) steps_.back().threads = std::max(steps_.back().threads, threads);
}

void* Explaining::Place(std::int64_t bytes) {
  constexpr std::uintptr_t kLine = 64;
  const std::uintptr_t at = next_;
  next_ += (static_cast<std::uintptr_t>(bytes) + kLine) / kLine * kLine;
  return reinterpret_cast<void*>(at);
}

}  // namespace cpd
