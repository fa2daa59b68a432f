#include "intercept/got_hook.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace omnihvd {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT;
#else
#error "the GOT hook knows x86-64 and aarch64"
#endif

using Library = dl_phdr_info;

bool path_contains(const Library& library, const std::string& text) {
  // The main program has no path here, and the kernel's vDSO has no file.
  return library.dlpi_name != nullptr && library.dlpi_name[0] == '/' &&
         std::string(library.dlpi_name).find(text) != std::string::npos;
}

// Calls visit(library) for each loaded library. Holds the loader's lock, so no library can be
// unloaded meanwhile; visit must not throw.
template <typename Visit>
void for_each_library(Visit visit) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* context) {
        (*static_cast<Visit*>(context))(*info);
        return 0;
      },
      &visit);
}

const ElfW(Phdr) * find_segment(const Library& library, uint32_t type) {
  const auto* end = library.dlpi_phdr + library.dlpi_phnum;
  const auto* found = std::find_if(library.dlpi_phdr, end,
                                   [type](const ElfW(Phdr) & p) { return p.p_type == type; });
  return found == end ? nullptr : found;
}

bool contains(const Library& library, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address) - library.dlpi_addr;
  return std::any_of(library.dlpi_phdr, library.dlpi_phdr + library.dlpi_phnum,
                     [at](const ElfW(Phdr) & p) {
                       return p.p_type == PT_LOAD && at >= p.p_vaddr && at - p.p_vaddr < p.p_memsz;
                     });
}

// The GOT slots through which the library calls `symbol`.
std::vector<void**> find_slots(const Library& library, const std::string& symbol) {
  const ElfW(Phdr)* segment = find_segment(library, PT_DYNAMIC);
  if (segment == nullptr) return {};
  const uintptr_t base = library.dlpi_addr;
  // glibc has made most addresses in this table absolute; other loaders leave them relative.
  const auto absolute = [base](uintptr_t address) {
    return address < base ? base + address : address;
  };
  struct Table {
    uintptr_t address = 0;
    size_t bytes = 0;
  } plt, rela;
  uintptr_t symbols = 0, strings = 0;
  for (auto* entry = reinterpret_cast<const ElfW(Dyn)*>(base + segment->p_vaddr);
       entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB: symbols = absolute(entry->d_un.d_ptr); break;
      case DT_STRTAB: strings = absolute(entry->d_un.d_ptr); break;
      case DT_JMPREL: plt.address = absolute(entry->d_un.d_ptr); break;
      case DT_PLTRELSZ: plt.bytes = entry->d_un.d_val; break;
      case DT_RELA: rela.address = absolute(entry->d_un.d_ptr); break;
      case DT_RELASZ: rela.bytes = entry->d_un.d_val; break;
      default: break;
    }
  }
  std::vector<void**> slots;
  for (const Table& table : {plt, rela}) {
    const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(table.address);
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const auto& relocation = relocations[i];
      const uint32_t type = ELF64_R_TYPE(relocation.r_info);
      if (type != kJumpSlot && type != kGlobDat) continue;
      const auto& imported =
          reinterpret_cast<const ElfW(Sym)*>(symbols)[ELF64_R_SYM(relocation.r_info)];
      if (symbol == reinterpret_cast<const char*>(strings + imported.st_name))
        slots.push_back(reinterpret_cast<void**>(base + relocation.r_offset));
    }
  }
  return slots;
}

// Writes a slot even if the loader has made it read-only after relocation (RELRO, which covers the
// whole GOT of a library linked with -z now). Returns 0, or errno.
int write_slot(const Library& library, void** slot, void* value) {
  const uintptr_t page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t page = reinterpret_cast<uintptr_t>(slot) & ~(page_size - 1);
  bool read_only = false;
  if (const ElfW(Phdr)* relro = find_segment(library, PT_GNU_RELRO)) {
    const uintptr_t begin = library.dlpi_addr + relro->p_vaddr;
    // The loader protects whole pages only, so it rounds both ends down.
    read_only =
        page >= (begin & ~(page_size - 1)) && page < ((begin + relro->p_memsz) & ~(page_size - 1));
  }
  auto* const start = reinterpret_cast<void*>(page);
  if (read_only && mprotect(start, page_size, PROT_READ | PROT_WRITE) != 0) return errno;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);  // other threads may be calling through it
  if (read_only && mprotect(start, page_size, PROT_READ) != 0) return errno;
  return 0;
}

struct Redirected {
  std::string library;
  std::string symbol;
  void** slot;
  void* before;
  void* replacement;

  bool in_force(const Library& in) const {
    return library == in.dlpi_name && contains(in, slot) && *slot == replacement;
  }
};
std::mutex mutex;  // guards redirected(); taken before the loader's lock
std::vector<Redirected>& redirected() {
  static auto& list = *new std::vector<Redirected>;  // outlives all static destructors
  return list;
}

void throw_if_failed(const std::string& what, const std::string& library, int error) {
  if (error == 0) return;
  throw Error("cannot " + what + " in " + library + ": " + std::strerror(error) +
              "; does a security policy of this host forbid mprotect()?");
}

std::vector<void**> slots_of(const std::string& path, const std::string& symbol) {
  bool loaded = false;
  std::vector<void**> slots;
  for_each_library([&](const Library& library) {
    if (path != library.dlpi_name) return;
    loaded = true;
    slots = find_slots(library, symbol);
  });
  if (!loaded) throw Error(path + " is not loaded in this process");
  return slots;
}

}  // namespace

std::vector<std::string> loaded_libraries(const std::string& text) {
  std::vector<std::string> paths;
  for_each_library([&](const Library& library) {
    if (path_contains(library, text)) paths.push_back(library.dlpi_name);
  });
  return paths;
}

bool imports(const std::string& path, const std::string& symbol) {
  return !slots_of(path, symbol).empty();
}

void* imported(const std::string& path, const std::string& symbol) {
  const std::vector<void**> slots = slots_of(path, symbol);
  return slots.empty() ? nullptr : *slots.front();
}

std::string provider(const std::string& path, const std::string& symbol) {
  // It is loaded already: this only counts its use.
  const std::unique_ptr<void, int (*)(void*)> library(
      dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL), &dlclose);
  if (!library) throw Error(path + " is not loaded in this process");
  Dl_info found;
  const void* address = dlsym(library.get(), symbol.c_str());
  if (address == nullptr || dladdr(address, &found) == 0)
    throw Error("neither " + path + " nor the libraries it needs have the function " + symbol);
  return found.dli_fname;
}

std::vector<std::string> install_hook(const std::string& text, const std::string& symbol,
                                      void* replacement) {
  std::vector<std::string> hooked;
  std::string failed;
  int error = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& list = redirected();
  for_each_library([&](const Library& library) {
    if (!path_contains(library, text) || contains(library, replacement)) return;
    const std::vector<void**> slots = find_slots(library, symbol);
    if (!slots.empty()) hooked.push_back(library.dlpi_name);
    for (void** slot : slots) {
      if (*slot == replacement || error != 0) continue;
      Redirected now{library.dlpi_name, symbol, slot, *slot, replacement};
      const auto known = std::find_if(list.begin(), list.end(),
                                      [slot](const Redirected& r) { return r.slot == slot; });
      if (known != list.end()) {  // redirected elsewhere, or its library was unloaded
        if (known->in_force(library)) now.before = known->before;
        list.erase(known);
      }
      error = write_slot(library, slot, replacement);
      if (error != 0) failed = library.dlpi_name;
      list.push_back(now);
    }
  });
  throw_if_failed("hook " + symbol, failed, error);
  return hooked;
}

std::set<std::pair<std::string, std::string>> installed_hooks() {
  std::set<std::pair<std::string, std::string>> hooks;
  const std::lock_guard<std::mutex> lock(mutex);
  for_each_library([&](const Library& library) {
    for (const Redirected& r : redirected())
      if (r.in_force(library)) hooks.emplace(r.library, r.symbol);
  });
  return hooks;
}

void remove_hooks(const std::string& symbol) {
  std::string failed;
  int error = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& list = redirected();
  for_each_library([&](const Library& library) {
    for (const Redirected& r : list) {
      if (r.symbol != symbol || !r.in_force(library) || error != 0) continue;
      error = write_slot(library, r.slot, r.before);
      if (error != 0) failed = r.library;
    }
  });
  throw_if_failed("unhook " + symbol, failed, error);
  list.erase(std::remove_if(list.begin(), list.end(),
                            [&](const Redirected& r) { return r.symbol == symbol; }),
             list.end());
}

}  // namespace omnihvd
