#include "shims/nccl/kernels.h"

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

// Of the sources, which lie in the package beside the folder of this library, or, in a source tree,
// beside the package: kernels compiled from others do not fit this shim. As in
// omnihvd/carriers/kernel_cache.py.
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

fs::path cache_folder(const std::string& setting) {
  if (!setting.empty()) return setting;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    return fs::path(cache) / "omnihvd/kernels";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/") / ".cache/omnihvd/kernels";
}

}  // namespace

// Modules stay loaded: another communicator of the device will want them.
GpuKernels::Functions GpuKernels::load(CuDevice device, const std::string& path, bool of_floats) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::pair<CuDevice, std::string>, Functions>;
  const std::lock_guard<std::mutex> lock(mutex);
  Functions& f = loaded[{device, path}];
  if (f.scatter != nullptr) return f;
  const std::string image = content_of(path);
  if (image.empty())
    throw Error("no kernels for this GPU: " + path +
                " is missing. `omnihvd kernels` on this host makes it (or `import omnihvd`)");
  CuModule module = nullptr;
  check_cuda(cuda().module_load_data(&module, image.c_str()), ("loading " + path).c_str());
  const auto find = [module](CuFunction* function, const char* name) {
    check_cuda(cuda().module_get_function(function, module, name), "cuModuleGetFunction");
    // Now, and not at the first launch, when the device may be waiting for other ranks.
    if (cuda().func_load != nullptr) check_cuda(cuda().func_load(*function), "cuFuncLoad");
  };
  find(&f.compact, "compact");
  if (of_floats) find(&f.scale, "scale");
  find(&f.mark, "mark");
  find(&f.unite, "unite");
  find(&f.total, "total");
  find(&f.gather, "gather");
  find(&f.spread, "spread");
  find(&f.rest, "rest");
  find(&f.scatter, "scatter");  // the last: it says that all are there
  return f;
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

namespace {

void launch(CuFunction function, uint64_t grid, unsigned threads, CuStream stream,
            void** arguments) {
  check_cuda(cuda().launch_kernel(function, static_cast<unsigned>(grid), 1, 1, threads, 1, 1, 0,
                                  stream, arguments, nullptr),
             "launching a kernel");
}

}  // namespace

// Compact and scatter reach into the host's memory: more CTAs would only wait.
void GpuKernels::compact(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress totals,
                         CuAddress bitmap, CuAddress records, CuAddress data,
                         CuStream stream) const {
  CuAddress segments = 0;
  uint32_t n_segments = 0;
  void* arguments[] = {&tensor, &elements, &segments, &n_segments, &flags,
                       &totals, &bitmap,   &records,  &data};
  launch(functions_.compact,
         kernels::at_most(kernels::kPcieCtas, kernels::compact_grid(elements, width_)),
         kernels::kCompactThreads, stream, arguments);
}

void GpuKernels::scatter(CuAddress tensor, uint64_t elements, CuAddress records, CuAddress count,
                         CuAddress data, CuStream stream) const {
  CuAddress segments = 0;
  uint32_t n_segments = 0;
  const uint64_t blocks = (elements + block_size_ - 1) / block_size_;
  void* arguments[] = {&tensor, &elements, &segments, &n_segments, &records, &count, &data};
  const uint64_t grid = kernels::scatter_grid(blocks, width_, block_size_);
  launch(functions_.scatter, kernels::at_most(kernels::kPcieCtas, grid), kernels::kScatterThreads,
         stream, arguments);
}

void GpuKernels::scale(CuAddress in, CuAddress out, uint64_t elements, double factor,
                       CuStream stream) const {
  uint32_t form = format();
  void* arguments[] = {&in, &out, &elements, &factor, &form};
  launch(functions_.scale, kernels::stride_grid(elements, width_), kernels::kStrideThreads, stream,
         arguments);
}

void GpuKernels::mark(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress marks,
                      CuStream stream) const {
  const uint64_t blocks = (elements + block_size_ - 1) / block_size_;
  void* arguments[] = {&tensor, &elements, &flags, &marks};
  launch(functions_.mark, kernels::word_grid((blocks + 31) / 32), kernels::kWordThreads, stream,
         arguments);
}

void GpuKernels::unite(CuAddress marks, uint64_t stride, uint32_t ranks, uint32_t rank,
                       uint64_t words, uint64_t words_per_chunk, CuAddress united, CuAddress prefix,
                       CuAddress counts, CuStream stream) const {
  void* arguments[] = {&marks,           &stride, &ranks,  &rank,  &words,
                       &words_per_chunk, &united, &prefix, &counts};
  const uint64_t chunks = (words + words_per_chunk - 1) / words_per_chunk;
  launch(functions_.unite, kernels::at_most(kernels::kUniteCtas, chunks), kernels::kUniteThreads,
         stream, arguments);
}

void GpuKernels::total(CuAddress counts, uint64_t chunks, CuAddress starts, CuAddress seen,
                       uint64_t number, CuStream stream) const {
  void* arguments[] = {&counts, &chunks, &starts, &seen, &number};
  launch(functions_.total, 1, kernels::kUniteThreads, stream, arguments);
}

void GpuKernels::gather(CuAddress tensor, uint64_t elements, const kernels::Union& part,
                        CuAddress buffer, CuStream stream) const {
  kernels::Union u = part;
  void* arguments[] = {&tensor, &elements, &u, &buffer};
  launch(functions_.gather, kernels::word_grid(u.words), kernels::kWordThreads, stream, arguments);
}

void GpuKernels::spread(CuAddress tensor, uint64_t elements, const kernels::Union& part,
                        CuAddress buffer, bool fill, CuStream stream) const {
  kernels::Union u = part;
  uint32_t zeros = fill;
  void* arguments[] = {&tensor, &elements, &u, &buffer, &zeros};
  launch(functions_.spread, kernels::word_grid(u.words), kernels::kWordThreads, stream, arguments);
}

void GpuKernels::rest(CuAddress in, CuAddress out, uint64_t elements, const kernels::Union& windows,
                      CuAddress rest, CuAddress data, double factor, CuStream stream) const {
  kernels::Union u = windows;
  uint32_t dtype = uint32_t(dtype_), form = format();
  void* arguments[] = {&in, &out, &elements, &u, &rest, &data, &dtype, &factor, &form};
  launch(functions_.rest, 1, kernels::kWordThreads, stream, arguments);
}

}  // namespace omnihvd
