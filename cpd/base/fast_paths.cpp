// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/fast_paths.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "cpd/spec/error.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

const std::vector<std::string_view>& NamesOfPaths() {
  static const std::vector<std::string_view> names(std::next(std::begin(kFastPathNames)),
                                                   std::end(kFastPathNames));
  return names;
}

FastPath PathNamed(std::string_view name) {
  const auto& names = NamesOfPaths();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    std::string all;
    for (const std::string_view known : names) {
      all += (all.empty() ? "" : ", ") + std::string(known);
    }
    throw Error("CPD_FAST: no fast path is called " + Quoted(name) + DidYouMean(name, names) +
                " (paths: " + all + ")");
  }
  return static_cast<FastPath>(found - names.begin() + 1);
}

std::atomic<FastPaths> g_paths{};
std::once_flag g_read;

}  // namespace

FastPaths ParseFastPaths(std::string_view text) {
  if (text.empty() || text == "all") return {};
  if (text == "none") return FastPaths::none();
  FastPaths paths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    if (item.empty() || item.front() != '-') {
      throw Error("CPD_FAST must be 'all', 'none' or names to switch off, as in '-veltkamp', got " +
                  Quoted(text));
    }
    paths = paths.without(PathNamed(item.substr(1)));
    begin = end + 1;
  }
  return paths;
}

FastPaths EnabledFastPaths() {
  std::call_once(g_read, [] {
    const char* text = std::getenv("CPD_FAST");
    g_paths.store(ParseFastPaths(text == nullptr ? "" : text), std::memory_order_relaxed);
  });
  return g_paths.load(std::memory_order_relaxed);
}

void SetFastPaths(FastPaths paths) {
  std::call_once(g_read, [] {});
  g_paths.store(paths, std::memory_order_relaxed);
}

}  // namespace cpd
