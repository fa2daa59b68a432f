#include "nccl/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"

namespace omnihvd {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return file ? content.str() : std::string();
}

// The digest of the kernel sources: kernels compiled from other sources do not fit this shim. The
// sources lie in the package beside this library's folder, or, in a source tree, beside the
// package. As in omnihvd/carriers/kernel_cache.py.
std::string source_digest() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&source_digest), &self) == 0 || self.dli_fname == nullptr)
    throw Error("cannot tell where omnihvd is installed");
  std::error_code none;
  const fs::path package = fs::absolute(self.dli_fname).parent_path().parent_path();
  fs::path folder = package / "kernels";
  if (!fs::exists(folder, none)) folder = package.parent_path() / "kernels";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const auto extension = entry.path().extension();
    if (extension == ".cu" || extension == ".cuh") files.push_back(entry.path());
  }
  if (files.empty()) throw Error("the kernels' sources are missing in " + folder.string());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const fs::path& file : files) all += content_of(file);
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : sha256(all)) {
    text += digits[byte / 16];
    text += digits[byte % 16];
  }
  return text.substr(0, 16);
}

// Indexed by Function.
constexpr const char* kNames[] = {"compact", "scatter", "scale",  "mark", "unite",
                                  "total",   "gather",  "spread", "rest"};
constexpr CuAddress kNoSegments = 0;

fs::path cache_folder(const std::string& setting) {
  if (!setting.empty()) return setting;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    return fs::path(cache) / "omnihvd/kernels";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/") / ".cache/omnihvd/kernels";
}

}  // namespace

// Modules stay loaded, because other communicators of the device will use them.
GpuKernels::Functions GpuKernels::load(CuDevice device, const std::string& path, bool of_floats) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::pair<CuDevice, std::string>, Functions>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = loaded.find({device, path}); found != loaded.end()) return found->second;
  const std::string image = content_of(path);
  if (image.empty())
    throw Error("no kernels for this GPU: " + path +
                " is missing. `omnihvd kernels` on this host makes it (or `import omnihvd`)");
  CuModule module = nullptr;
  check_cuda(cuda().module_load_data(&module, image.c_str()), ("loading " + path).c_str());
  Functions f{};
  for (int i = 0; i < kFunctions; ++i) {
    if (i == kScale && !of_floats) continue;
    check_cuda(cuda().module_get_function(&f[size_t(i)], module, kNames[i]), "cuModuleGetFunction");
    // Load now rather than at the first launch, when the device may be waiting for other ranks.
    if (cuda().func_load != nullptr) check_cuda(cuda().func_load(f[size_t(i)]), "cuFuncLoad");
  }
  return loaded[{device, path}] = f;
}

KernelTable::KernelTable(CuDevice device, uint32_t block_size, const std::string& cache) {
  if (block_size < 32 || block_size > 1024 || (block_size & (block_size - 1)) != 0)
    throw Error("OMNIHVD_BLOCK_SIZE=" + std::to_string(block_size) +
                ": on GPUs it must be a power of two from 32 to 1024");
  const fs::path folder = cache_folder(cache) / source_digest() / architecture_of(device);
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    GpuKernels& k = kernels_[i];
    k.dtype_ = dtype;
    k.width_ = static_cast<uint32_t>(size_of(dtype));
    k.block_size_ = block_size;
    const bool is_float = info_of(dtype).is_float;
    const std::string name = (is_float ? "float" : "int") + std::to_string(8 * k.width_) + "_" +
                             std::to_string(block_size) + ".cubin";
    k.functions_ = GpuKernels::load(device, (folder / name).string(), is_float);
  }
}

// Arguments must have the types of the kernel's parameters.
template <typename... Arguments>
void GpuKernels::launch(Function which, uint64_t grid, unsigned threads, CuStream stream,
                        Arguments... arguments) const {
  void* addresses[] = {&arguments...};
  check_cuda(cuda().launch_kernel(functions_[which], unsigned(grid), 1, 1, threads, 1, 1, 0, stream,
                                  addresses, nullptr),
             "launching a kernel");
}

// compact and scatter access host memory: more CTAs would only wait for it.
void GpuKernels::compact(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress totals,
                         CuAddress bitmap, CuAddress records, CuAddress data,
                         CuStream stream) const {
  launch(kCompact, kernels::at_most(kernels::kPcieCtas, kernels::compact_grid(elements, width_)),
         kernels::kCompactThreads, stream, tensor, elements, kNoSegments, 0u, flags, totals, bitmap,
         records, data);
}

void GpuKernels::scatter(CuAddress tensor, uint64_t elements, CuAddress records, CuAddress count,
                         CuAddress data, CuStream stream) const {
  const uint64_t grid = kernels::scatter_grid(blocks_of(elements), width_, block_size_);
  launch(kScatter, kernels::at_most(kernels::kPcieCtas, grid), kernels::kScatterThreads, stream,
         tensor, elements, kNoSegments, 0u, records, count, data);
}

void GpuKernels::scale(CuAddress in, CuAddress out, uint64_t elements, double factor,
                       CuStream stream) const {
  launch(kScale, kernels::stride_grid(elements, width_), kernels::kStrideThreads, stream, in, out,
         elements, factor, format());
}

void GpuKernels::mark(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress marks,
                      CuStream stream) const {
  launch(kMark, kernels::word_grid((blocks_of(elements) + 31) / 32), kernels::kWordThreads, stream,
         tensor, elements, flags, marks);
}

void GpuKernels::unite(CuAddress marks, uint64_t stride, uint32_t ranks, uint32_t rank,
                       uint64_t words, uint64_t words_per_chunk, CuAddress united, CuAddress prefix,
                       CuAddress counts, CuStream stream) const {
  const uint64_t chunks = (words + words_per_chunk - 1) / words_per_chunk;
  launch(kUnite, kernels::at_most(kernels::kUniteCtas, chunks), kernels::kUniteThreads, stream,
         marks, stride, ranks, rank, words, words_per_chunk, united, prefix, counts);
}

void GpuKernels::total(CuAddress counts, uint64_t chunks, CuAddress starts, CuAddress seen,
                       uint64_t number, CuStream stream) const {
  launch(kTotal, 1, kernels::kUniteThreads, stream, counts, chunks, starts, seen, number);
}

void GpuKernels::gather(CuAddress tensor, uint64_t elements, const kernels::Union& part,
                        CuAddress buffer, CuStream stream) const {
  launch(kGather, kernels::word_grid(part.words), kernels::kWordThreads, stream, tensor, elements,
         part, buffer);
}

void GpuKernels::spread(CuAddress tensor, uint64_t elements, const kernels::Union& part,
                        CuAddress buffer, bool fill, CuStream stream) const {
  launch(kSpread, kernels::word_grid(part.words), kernels::kWordThreads, stream, tensor, elements,
         part, buffer, uint32_t(fill));
}

void GpuKernels::rest(CuAddress in, CuAddress out, uint64_t elements, const kernels::Union& windows,
                      CuAddress rest, CuAddress data, double factor, CuStream stream) const {
  launch(kRest, 1, kernels::kWordThreads, stream, in, out, elements, windows, rest, data,
         uint32_t(dtype_), factor, format());
}

}  // namespace omnihvd
