// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/faults.h"

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "cpd/backend/device_memory.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

struct Noted {
  std::mutex mutex;
  std::map<std::tuple<const Backend*, int, std::string, std::string>, unsigned long long*> places;
};

/// Returns the table of all faults. The table is never destroyed, because a kernel may still record
/// a fault while the process ends.
Noted& All() {
  static auto* all = new Noted;
  return *all;
}

/// True if any memory for faults was allocated. While it is false, no device can have recorded a
/// fault, and calls take no lock.
std::atomic<bool> g_has_places = false;

std::atomic<bool>& AtOnce() {
  static std::atomic<bool> at_once = [] {
    const char* check = std::getenv("CPD_CHECK");
    return check != nullptr && std::string_view(check) == "sync";
  }();
  return at_once;
}

bool HasAny(const Noted& all, const Backend& backend, int device) {
  for (const auto& [key, place] : all.places) {
    if (std::get<0>(key) != &backend || std::get<1>(key) != device || place == nullptr) continue;
    if (std::atomic_ref(*place).load() != kNoFault) return true;
  }
  return false;
}

/// Returns a backend's name as error texts begin with it: "CUDA".
std::string Title(const Backend& backend) {
  std::string title = backend.name;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return title;
}

}  // namespace

void CheckStatus(const Backend& backend, int status) {
  if (status == 0) return;
  const std::string title = Title(backend);
  if (status == kNoMemoryLeft) throw NoDeviceMemory(title + " " + backend.describe(status));
  throw MachineError(title + ": " + backend.describe(status));
}

void Raise(const Fault& fault, unsigned long long element) {
  throw Error(fault.before + std::to_string(element) + fault.after);
}

unsigned long long* NoteOf(const Backend& backend, const Launch& launch, const Fault& fault) {
  Noted& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  unsigned long long*& place = all.places[{&backend, launch.device, fault.before, fault.after}];
  if (place != nullptr) return place;
  void* memory = nullptr;
  CheckStatus(backend, backend.allocate(launch, MemoryKind::pinned, sizeof(*place), &memory));
  place = static_cast<unsigned long long*>(memory);
  *place = kNoFault;
  g_has_places = true;
  return place;
}

void RaiseFaults(const Backend& backend, int device) {
  if (!g_has_places) return;
  Noted& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!HasAny(all, backend, device)) return;
  // Waits for all of the device's work before the faults are read and cleared. Otherwise the kernel
  // that recorded a fault might still run, and its later writes would raise the error a second
  // time.
  static_cast<void>(backend.release_unused(device));
  std::string text;
  for (const auto& [key, place] : all.places) {
    if (std::get<0>(key) != &backend || std::get<1>(key) != device || place == nullptr) continue;
    const unsigned long long found = std::atomic_ref(*place).exchange(kNoFault);
    if (found == kNoFault || !text.empty()) continue;
    text = std::get<2>(key) + std::to_string(found) + std::get<3>(key);
  }
  if (AtOnce()) throw Error(text);
  throw Error(text +
              " (of an earlier call on the device, or of this one; with CPD_CHECK=sync each "
              "raises its own)");
}

void EndChecked(const Backend& backend, const Launch& launch) {
  if (!AtOnce()) return;
  CheckStatus(backend, backend.wait(launch));
  RaiseFaults(backend, launch.device);
}

void CheckAtOnce(bool at_once) { AtOnce() = at_once; }

}  // namespace cpd
