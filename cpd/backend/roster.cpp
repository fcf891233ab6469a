// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/roster.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "cpd/spec/error.h"

#ifdef CPD_ISA_NEON
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace cpd {

namespace scalar {
const KernelTable& kernel_table();
}
namespace avx2 {
const KernelTable& kernel_table();
}
namespace avx512 {
const KernelTable& kernel_table();
}
namespace neon {
const KernelTable& kernel_table();
}

namespace {

/// Returns the tables of CPU kernels that this build contains, from fewer to more lanes.
std::vector<const KernelTable*> BuiltKernels() {
  std::vector<const KernelTable*> built{&scalar::kernel_table()};
#ifdef CPD_ISA_AVX2
  built.push_back(&avx2::kernel_table());
#endif
#ifdef CPD_ISA_AVX512
  built.push_back(&avx512::kernel_table());
#endif
#ifdef CPD_ISA_NEON
  built.push_back(&neon::kernel_table());
#endif
  return built;
}

bool CanRun(std::string_view name) {
#if defined(CPD_ISA_AVX2) || defined(CPD_ISA_AVX512)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (name == "avx2") return avx2;
  if (name == "avx512") {
    return avx2 && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0;
  }
#endif
#ifdef CPD_ISA_NEON
  if (name == "neon") return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
  return name == "scalar";
}

std::string Names(const std::vector<const KernelTable*>& tables) {
  std::string names;
  for (const KernelTable* table : tables)
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  return names;
}

const KernelTable* Choose(std::string_view name) {
  const std::vector<const KernelTable*> available = AvailableKernels();
  if (name.empty()) return available.back();
  for (const KernelTable* table : available) {
    if (name == table->name) return table;
  }
  throw Error("backend '" + std::string(name) +
              "' cannot run here; available: " + Names(available));
}

const KernelTable* FromEnvironment() {
  const char* name = std::getenv("CPD_BACKEND");
  return Choose(name == nullptr ? "" : name);
}

std::atomic<const KernelTable*> g_kernels{nullptr};

}  // namespace

std::vector<const KernelTable*> AvailableKernels() {
  std::vector<const KernelTable*> available;
  for (const KernelTable* table : BuiltKernels()) {
    if (CanRun(table->name)) available.push_back(table);
  }
  return available;
}

const KernelTable& Kernels() {
  const KernelTable* table = g_kernels.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = FromEnvironment();
    g_kernels.store(table, std::memory_order_release);
  }
  return *table;
}

void ForceKernels(std::string_view name) {
  g_kernels.store(name.empty() ? FromEnvironment() : Choose(name), std::memory_order_release);
}

void SetKernels(const KernelTable& table) { g_kernels.store(&table, std::memory_order_release); }

}  // namespace cpd
