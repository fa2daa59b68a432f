#include "nccl/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
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
// package. As in omnihvd/intercept/kernel_cache.py.
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
constexpr const char* kNames[] = {"mark", "unite", "gather", "spread", "rest"};

fs::path cache_folder(const std::string& setting) {
  if (!setting.empty()) return setting;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != 0)
    return fs::path(cache) / "omnihvd/kernels";
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : "/") / ".cache/omnihvd/kernels";
}

}  // namespace

// Modules stay loaded, because other communicators of the device will use them.
GpuKernels::Functions GpuKernels::load(CuDevice device, const std::string& path) {
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
    const std::string name = (info_of(dtype).is_float ? "float" : "int") +
                             std::to_string(8 * size_of(dtype)) + "_" + std::to_string(block_size) +
                             ".cubin";
    k.functions_ = GpuKernels::load(device, (folder / name).string());
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

void GpuKernels::mark(CuAddress tensor, uint64_t elements, uint64_t words, uint32_t flags,
                      uint32_t trailer, CuAddress marks, CuStream stream) const {
  launch(kMark, kernels::word_grid(words), kernels::kWordThreads, stream, tensor, elements, flags,
         trailer, marks);
}

void GpuKernels::unite(CuAddress own, CuAddress all, uint64_t words, uint64_t words_per_chunk,
                       CuAddress united, CuAddress prefix, CuAddress counts, CuAddress arrived,
                       CuAddress starts, CuAddress seen, uint64_t number, CuStream stream) const {
  const uint64_t chunks = (words + words_per_chunk - 1) / words_per_chunk;
  launch(kUnite, kernels::at_most(kernels::kUniteCtas, chunks), kernels::kUniteThreads, stream, own,
         all, words, words_per_chunk, united, prefix, counts, arrived, starts, seen, number);
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
