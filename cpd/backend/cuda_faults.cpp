// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cuda_faults.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "cpd/backend/device_memory.h"
#include "cpd/spec/error.h"

namespace cpd::cuda {
namespace {

constexpr unsigned long long kNone = ~0ULL;

struct Noted {
  std::mutex mutex;
  const Api* api = nullptr;  ///< not null where there are places
  std::map<std::tuple<int, std::string, std::string>, unsigned long long*> places;
};

/// Never destroyed: a kernel may still note something as the process ends.
Noted& All() {
  static auto* all = new Noted;
  return *all;
}

std::atomic<bool>& AtOnce() {
  static std::atomic<bool> at_once = [] {
    const char* check = std::getenv("CPD_CHECK");
    return check != nullptr && std::string_view(check) == "sync";
  }();
  return at_once;
}

bool HasAny(const Noted& all, int device) {
  for (const auto& [key, place] : all.places) {
    if (std::get<0>(key) != device || place == nullptr) continue;
    if (std::atomic_ref(*place).load() != kNone) return true;
  }
  return false;
}

}  // namespace

void CheckStatus(const Api& api, int status) {
  constexpr int kNoMemory = 2;  // cudaErrorMemoryAllocation
  if (status == kNoMemory) throw NoDeviceMemory(std::string("CUDA ") + api.describe(status));
  if (status != 0) throw MachineError(std::string("CUDA: ") + api.describe(status));
}

unsigned long long* PlaceOf(const Api& api, const Launch& launch, const Fault& fault) {
  Noted& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.api = &api;
  unsigned long long*& place = all.places[{launch.device, fault.before, fault.after}];
  if (place != nullptr) return place;
  void* memory = nullptr;
  CheckStatus(api, api.allocate(launch, MemoryKind::pinned, sizeof(*place), &memory));
  place = static_cast<unsigned long long*>(memory);
  *place = kNone;
  return place;
}

void RaiseFaults(int device) {
  Noted& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!HasAny(all, device)) return;
  // The kernel that notes may still run: without waiting, its later notes would raise once more.
  static_cast<void>(all.api->release_unused(device));
  std::string text;
  for (const auto& [key, place] : all.places) {
    if (std::get<0>(key) != device || place == nullptr) continue;
    const unsigned long long found = std::atomic_ref(*place).exchange(kNone);
    if (found == kNone || !text.empty()) continue;
    text = std::get<1>(key) + std::to_string(found) + std::get<2>(key);
  }
  if (AtOnce()) throw Error(text);
  throw Error(text +
              " (of an earlier call on the GPU, or of this one; with CPD_CHECK=sync each "
              "raises its own)");
}

void EndChecked(const Api& api, const Launch& launch) {
  if (!AtOnce()) return;
  CheckStatus(api, api.wait(launch));
  RaiseFaults(launch.device);
}

void CheckAtOnce(bool at_once) { AtOnce() = at_once; }

}  // namespace cpd::cuda
