#include "shims/gloo/horovod.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "shims/got_hook.h"

namespace omnihvd {
namespace {

static_assert(sizeof(GlooVtable) == 80 && offsetof(GlooContext, of_process_set) == 16 &&
                  offsetof(GlooRanks, rank) == 8 && offsetof(GlooRanks, size) == 12,
              "as in Horovod's libraries");

std::string vtable_symbol(const GlooType& type) {
  return std::string("_ZTVN7horovod6common14GlooAlgorithmsI") + type.mangled + "EE";
}

// Of a class with one base: as theirs, if the same C++ run-time library made it, by which what is
// thrown in one library can be caught in another.
const void* run_time_library() {
  struct Base {
    virtual ~Base() = default;
  };
  struct Derived : Base {};
  const void* vtable;
  std::memcpy(&vtable, &typeid(Derived), sizeof vtable);
  return vtable;
}

const void* start_of_library(const void* address) {
  Dl_info found;
  return dladdr(address, &found) != 0 ? found.dli_fbase : nullptr;
}

// Whether it is memory at all.
bool is_mapped(const void* address, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t first = begin & ~(page - 1);
  return begin != 0 && msync(reinterpret_cast<void*>(first), begin + bytes - first, MS_ASYNC) == 0;
}

// Why it is not the vtable of this type; null: it is.
const char* misfit_of(const GlooVtable& vtable, const GlooType& type) {
  if (vtable.offset_to_top != 0 || !is_mapped(vtable.type, 2 * sizeof(void*)))
    return "its vtables are laid out in another way";
  const void* theirs;
  std::memcpy(&theirs, vtable.type, sizeof theirs);
  if (theirs != run_time_library()) return "it has a C++ run-time library of its own";
  if (vtable.type->name() != std::string("N7horovod6common14GlooAlgorithmsI") + type.mangled + "EE")
    return "its vtables have other names";
  const void* functions[sizeof(GlooVtable::Functions) / sizeof(void*)];
  std::memcpy(functions, &vtable.functions, sizeof functions);
  for (const void* function : functions)
    if (start_of_library(function) != start_of_library(&vtable))
      return "its vtables lead out of the library";
  const GlooAlgorithms object{&vtable.functions, nullptr};
  if (vtable.functions.element_size(&object) != type.bytes) return "its types have other sizes";
  return nullptr;
}

template <typename Function>
Function* function_of(const std::string& library, const char* name) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
  void* const found = handle != nullptr ? dlsym(handle, name) : nullptr;
  if (handle != nullptr) dlclose(handle);
  if (found == nullptr) throw Error(library + " has no function " + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

GlooLibrary::GlooLibrary(const std::string& path, const Replacements& allreduce)
    : path_(path),
      job_rank_(function_of<int()>(path, "horovod_rank")),
      job_size_(function_of<int()>(path, "horovod_size")) {
  for (size_t i = 0; i < kGlooTypeCount; ++i) {
    const void* const found = imported(path, vtable_symbol(kGlooTypes[i]));
    if (found == nullptr) throw Error(path + " does not look its Gloo algorithms up");
    const auto* const original = static_cast<const GlooVtable*>(found);
    if (const char* misfit = misfit_of(*original, kGlooTypes[i])) throw Error(path + ": " + misfit);
    copies_[i] = {this, original, *original};
    copies_[i].vtable.functions.allreduce = allreduce[i];
  }
}

void GlooLibrary::hook() {
  for (size_t i = 0; i < kGlooTypeCount; ++i)
    install_hook(path_, vtable_symbol(kGlooTypes[i]), &copies_[i].vtable);
}

const GlooLibrary::Copy& GlooLibrary::copy_of(const GlooAlgorithms& object) {
  const auto* const functions = reinterpret_cast<const char*>(object.functions);
  constexpr size_t offset = offsetof(Copy, vtable) + offsetof(GlooVtable, functions);
  return *reinterpret_cast<const Copy*>(functions - offset);
}

const GlooLibrary& GlooLibrary::of(const GlooAlgorithms& object) {
  return *copy_of(object).library;
}

const GlooVtable::Functions& GlooLibrary::original(const GlooAlgorithms& object) {
  return copy_of(object).original->functions;
}

GlooAlgorithms GlooLibrary::for_bytes(GlooContext* context) const {
  return {&copies_[kGlooBytes].original->functions, context};
}

GlooRanks* GlooLibrary::ranks_of(const GlooContext* context) {
  return is_mapped(context, sizeof *context) ? context->of_process_set.get() : nullptr;
}

bool GlooLibrary::fits(const GlooRanks& ranks) const {
  const int job_size = job_size_();
  return is_mapped(&ranks, sizeof ranks) && ranks.size > 0 && ranks.size <= job_size &&
         ranks.rank >= 0 && ranks.rank < ranks.size &&
         (ranks.size < job_size || ranks.rank == job_rank_());
}

}  // namespace omnihvd
