// The layout of objects in Horovod's libraries (0.28.1) that omnihvd relies on, and its
// verification. Horovod contains Gloo and exports nothing of it but the vtables of
// GlooAlgorithms<T>. It reads their addresses through its global offset table, where addresses of
// copies can replace them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "numeric/dtype.h"

namespace omnihvd {

// The beginning of gloo::Context: the ranks of a process set, connected.
struct GlooRanks {
  const void* vtable;
  int rank, size;
};

// The beginning of horovod::common::GlooContext.
struct GlooContext {
  std::shared_ptr<GlooRanks> of_job, of_process_set, between_hosts, within_host;
};

struct GlooAlgorithms;

using GlooAllreduce = void(GlooAlgorithms*, void* data, int count, int op);
// In place: a rank's share of the sum is written to the beginning. counts: elements of each rank.
using GlooReducescatter = void(GlooAlgorithms*, void* data, std::vector<int>& counts);

// The vtable of horovod::common::GlooAlgorithms<T>.
struct GlooVtable {
  std::ptrdiff_t offset_to_top;
  const std::type_info* type;
  struct Functions {
    GlooAllreduce* allreduce;
    void (*allgather)(GlooAlgorithms*, void* in, void* out, int* counts, int* offsets);
    void (*broadcast)();
    void (*alltoall)();
    GlooReducescatter* reducescatter;
    void (*element_size)();
    void (*destructor)();
    void (*deleting_destructor)();
  } functions;
};

// A GlooAlgorithms object; all its sums are in place.
struct GlooAlgorithms {
  const GlooVtable::Functions* functions;
  GlooContext* context;
};

constexpr int kGlooSum = 1;  // horovod::common::ReduceOp::SUM

// A type T: its name in symbols, its size, and its type in the engine.
struct GlooType {
  const char* mangled;
  int bytes;
  std::optional<DType> dtype;
};
constexpr GlooType kGlooTypes[] = {
    {"h", 1, dtype_of<uint8_t>()},
    {"a", 1, dtype_of<int8_t>()},
    {"t", 2, dtype_of<uint16_t>()},
    {"s", 2, dtype_of<int16_t>()},
    {"i", 4, dtype_of<int32_t>()},
    {"l", 8, dtype_of<int64_t>()},
    {"N4gloo7float16E", 2, dtype_of<Float16>()},
    {"f", 4, dtype_of<float>()},
    {"d", 8, dtype_of<double>()},
    {"b", 1, std::nullopt},
};
constexpr size_t kGlooTypeCount = sizeof kGlooTypes / sizeof *kGlooTypes;
constexpr size_t kGlooBytes = 0;  // the type of bytes

// One of Horovod's libraries in this process. Never destroyed.
class HorovodLibrary {
 public:
  // replacements[i]: the functions that replace those of kGlooTypes[i]. Only inspects; throws Error
  // if anything is not as expected.
  struct Replacement {
    GlooAllreduce* allreduce;
    GlooReducescatter* reducescatter;
  };
  using Replacements = std::array<Replacement, kGlooTypeCount>;
  HorovodLibrary(const std::string& path, const Replacements& replacements);
  HorovodLibrary(const HorovodLibrary&) = delete;

  // From now on the library's new objects use our functions. Throws Error.
  void hook();

  // The library of an object that uses our functions.
  static const HorovodLibrary& of(const GlooAlgorithms& object) { return *copy_of(object).library; }
  static const GlooVtable::Functions& original(const GlooAlgorithms& object) {
    return copy_of(object).original->functions;
  }

  // An object for bytes that has this context and Horovod's own functions.
  GlooAlgorithms for_bytes(GlooContext* context) const {
    return {&copies_[kGlooBytes].original->functions, context};
  }

  // The ranks of a live context, or null if there are none.
  static GlooRanks* ranks_of(const GlooContext* context);
  // Whether they agree with Horovod's own functions.
  bool fits(const GlooRanks& ranks) const;

  // This process's rank in the job, according to the library.
  int job_rank() const { return job_rank_(); }

 private:
  struct Copy {
    const HorovodLibrary* library;
    const GlooVtable* original;
    GlooVtable vtable;
  };
  static const Copy& copy_of(const GlooAlgorithms& object);

  const std::string path_;
  int (*job_rank_)() = nullptr;
  int (*job_size_)() = nullptr;
  Copy copies_[kGlooTypeCount];
};

}  // namespace omnihvd
