// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/explain.h"

#include <utility>

#include "cpd/backend/roster.h"

namespace cpd {

std::vector<Explanation> Explain(const std::function<void()>& call, int gpu) {
  const Explaining explaining(gpu);
  call();
  return explaining.steps();
}

void NotePath(const char* function, const Path& path) {
  Explaining::Current()->Begin(function, path.name, path.why);
}

void NoteKernel(const char* kernel, std::vector<std::int64_t> tile) {
  Explaining::Current()->Run(Kernels().name, kernel, std::move(tile));
}

}  // namespace cpd
