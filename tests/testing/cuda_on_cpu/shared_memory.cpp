// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/cuda_on_cpu/shared_memory.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tests/testing/cuda_on_cpu/block.h"

/// The argument of glibc's __tls_get_addr: an offset in the thread-local memory of a loaded file.
/// The function returns its address for the calling thread, and allocates that memory if necessary.
struct tls_index {
  std::size_t module, offset;
};
extern "C" void* __tls_get_addr(tls_index* place);

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kAround = 256;

/// The loaded file (program or library) that contains the code at an address.
struct File {
  const void* code = nullptr;
  std::uintptr_t base = 0;
  std::string path;
  std::uint8_t* thread_local_memory = nullptr;  ///< of the calling thread
  std::size_t thread_local_bytes = 0;

  explicit File(const void* code) : code(code) { dl_iterate_phdr(Take, this); }

  static int Take(dl_phdr_info* info, std::size_t /*size*/, void* data) {
    auto& file = *static_cast<File*>(data);
    const auto address = reinterpret_cast<std::uintptr_t>(file.code);
    bool holds = false;
    std::size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_TLS) bytes = segment.p_memsz;
      holds |= segment.p_type == PT_LOAD && address >= begin && address < begin + segment.p_memsz;
    }
    if (!holds) return 0;
    file.base = info->dlpi_addr;
    file.path = info->dlpi_name[0] == '\0' ? "/proc/self/exe" : info->dlpi_name;
    if (bytes == 0) return 1;
    tls_index first{info->dlpi_tls_modid, 0};
    file.thread_local_memory = static_cast<std::uint8_t*>(__tls_get_addr(&first));
    file.thread_local_bytes = bytes;
    return 1;
  }
};

/// The symbol table of an ELF file.
class Symbols {
 public:
  explicit Symbols(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    if (bytes_.size() < sizeof(Elf64_Ehdr)) fail("no symbols can be read from " + path);
  }

  /// Calls use(symbol, name) for each symbol.
  template <class Use>
  void Each(Use use) const {
    const auto header = At<Elf64_Ehdr>(0);
    const auto section = [&](std::size_t i) {
      return At<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
    };
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
      const Elf64_Shdr table = section(i);
      if (table.sh_type != SHT_SYMTAB) continue;
      const char* const names = bytes_.data() + section(table.sh_link).sh_offset;
      for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
        const auto symbol = At<Elf64_Sym>(table.sh_offset + at);
        use(symbol, std::string_view(names + symbol.st_name));
      }
    }
  }

 private:
  template <class T>
  T At(std::size_t place) const {
    T value;
    std::memcpy(&value, bytes_.data() + place, sizeof(T));
    return value;
  }

  std::vector<char> bytes_;
};

}  // namespace

SharedMemory& SharedMemory::Of(const void* kernel) {
  static std::mutex mutex;
  static auto& known = *new std::map<const void*, std::unique_ptr<SharedMemory>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<SharedMemory>& found = known[kernel];
  if (found == nullptr) found.reset(new SharedMemory(kernel));
  return *found;
}

SharedMemory::SharedMemory(const void* kernel) : kernel_(kernel) {
  const File file(kernel);
  const Symbols symbols(file.path);
  const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(kernel) - file.base;
  std::string name;
  symbols.Each([&](const Elf64_Sym& symbol, std::string_view its_name) {
    const bool is_function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC;
    if (is_function && symbol.st_value == place) name = its_name;
  });
  if (!name.starts_with("_Z")) fail("no symbol of a kernel in " + file.path);
  const std::string prefix = "_ZZ" + name.substr(2) + "E";  // of a function's own variables
  symbols.Each([&](const Elf64_Sym& symbol, std::string_view its_name) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS || !its_name.starts_with(prefix)) return;
    variables_.push_back({symbol.st_value, symbol.st_size});
  });
  const auto is_own = [&](std::size_t at) {
    return std::ranges::any_of(variables_, [&](const Variable& variable) {
      return at >= variable.begin && at < variable.begin + variable.size;
    });
  };
  for (const Variable& variable : variables_) {
    const std::size_t first = variable.begin - std::min(variable.begin, kAround);
    const std::size_t end = variable.begin + variable.size + kAround;
    for (std::size_t at = first; at < std::min(end, file.thread_local_bytes); ++at) {
      if (!is_own(at)) around_.push_back(at);
    }
  }
}

void SharedMemory::Begin() {
  memory_ = variables_.empty() ? nullptr : File(kernel_).thread_local_memory;
  for (const Variable& variable : variables_) {
    std::memset(memory_ + variable.begin, 0xA5, variable.size);
  }
  before_.clear();
  for (const std::size_t at : around_) before_.push_back(memory_[at]);
}

void SharedMemory::CheckAround() const {
  const auto changed = [&](std::size_t i) { return memory_[around_[i]] != before_[i]; };
  for (std::size_t i = 0; i < around_.size(); ++i) {
    if (changed(i)) fail_in(kernel_, "a byte beside the shared memory has changed");
  }
}

}  // namespace cuda_on_cpu
