#include "intercept/gloo/horovod.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "intercept/got_hook.h"

namespace omnihvd {
namespace {

static_assert(sizeof(GlooVtable) == 80 && offsetof(GlooContext, of_process_set) == 16 &&
                  offsetof(GlooRanks, rank) == 8 && offsetof(GlooRanks, size) == 12,
              "as in Horovod's libraries");

std::string vtable_symbol(const GlooType& type) {
  return std::string("_ZTVN7horovod6common14GlooAlgorithmsI") + type.mangled + "EE";
}

// The vtable of the type_info of a class with one base. It equals that of Horovod's types if both
// use the same C++ run-time library; only then can one library catch what the other throws.
const void* run_time_library() {
  struct Base {
    virtual ~Base() = default;
  };
  struct Derived : Base {};
  const void* vtable;
  std::memcpy(&vtable, static_cast<const void*>(&typeid(Derived)), sizeof vtable);
  return vtable;
}

// Whether the address is mapped memory.
bool is_mapped(const void* address, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t first = begin & ~(page - 1);
  return begin != 0 && msync(reinterpret_cast<void*>(first), begin + bytes - first, MS_ASYNC) == 0;
}

// The symbol that a loaded library exports under this name; null: none.
void* exported(const char* library, const std::string& name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  void* const found = dlsym(handle, name.c_str());
  dlclose(handle);
  return found;
}

int (*counter(const std::string& library, const char* name))() {
  void* const found = exported(library.c_str(), name);
  if (found == nullptr) throw Error(library + " has no function " + name);
  return reinterpret_cast<int (*)()>(found);
}

// Why this is not the vtable of this type; null: it is. A function's symbol contains its arguments'
// types.
const char* misfit_of(const GlooVtable& vtable, const GlooType& type) {
  Dl_info found;
  void* entry = nullptr;
  if (dladdr1(&vtable, &found, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr ||
      found.dli_saddr != &vtable || vtable.offset_to_top != 0 ||
      static_cast<const ElfW(Sym)*>(entry)->st_size != sizeof vtable)
    return "its vtables are of another size";
  const auto is = [&](auto* function, const std::string& name) {
    const std::string method = std::string("_ZN7horovod6common14GlooAlgorithmsI") + type.mangled;
    return reinterpret_cast<void*>(function) == exported(found.dli_fname, method + "E" + name);
  };
  const bool nested = type.mangled[0] == 'N';  // nested names change the symbols
  if (!is(vtable.functions.allreduce, "9AllreduceEPviNS0_8ReduceOpE") ||
      !is(vtable.functions.reducescatter, "13ReducescatterEPvRSt6vectorIiSaIiEE") ||
      !is(vtable.functions.allgather, nested ? "9AllgatherEPvS5_PiS6_" : "9AllgatherEPvS3_PiS4_"))
    return "its vtables hold other functions";
  const void* theirs;
  std::memcpy(&theirs, static_cast<const void*>(vtable.type), sizeof theirs);
  return theirs == run_time_library() ? nullptr : "it has a C++ run-time library of its own";
}

}  // namespace

HorovodLibrary::HorovodLibrary(const std::string& path, const Replacements& replacements)
    : path_(path),
      job_rank_(counter(path, "horovod_rank")),
      job_size_(counter(path, "horovod_size")) {
  for (size_t i = 0; i < kGlooTypeCount; ++i) {
    const void* const found = imported(path, vtable_symbol(kGlooTypes[i]));
    if (found == nullptr) throw Error(path + " does not look its Gloo algorithms up");
    const auto* const original = static_cast<const GlooVtable*>(found);
    if (const char* misfit = misfit_of(*original, kGlooTypes[i])) throw Error(path + ": " + misfit);
    copies_[i] = {this, original, *original};
    copies_[i].vtable.functions.allreduce = replacements[i].allreduce;
    copies_[i].vtable.functions.reducescatter = replacements[i].reducescatter;
  }
}

void HorovodLibrary::hook() {
  for (size_t i = 0; i < kGlooTypeCount; ++i)
    install_hook(path_, vtable_symbol(kGlooTypes[i]), &copies_[i].vtable);
}

const HorovodLibrary::Copy& HorovodLibrary::copy_of(const GlooAlgorithms& object) {
  const auto* const functions = reinterpret_cast<const char*>(object.functions);
  constexpr size_t offset = offsetof(Copy, vtable) + offsetof(GlooVtable, functions);
  return *reinterpret_cast<const Copy*>(functions - offset);
}

GlooRanks* HorovodLibrary::ranks_of(const GlooContext* context) {
  return is_mapped(context, sizeof *context) ? context->of_process_set.get() : nullptr;
}

bool HorovodLibrary::fits(const GlooRanks& ranks) const {
  const int job_size = job_size_();
  return is_mapped(&ranks, sizeof ranks) && ranks.size > 0 && ranks.size <= job_size &&
         ranks.rank >= 0 && ranks.rank < ranks.size &&
         (ranks.size < job_size || ranks.rank == job_rank_());
}

}  // namespace omnihvd
