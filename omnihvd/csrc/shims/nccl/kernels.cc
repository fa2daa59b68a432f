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
// omnihvd/kernel_cache.py.
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

bool is_float(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

struct Functions {
  CuFunction compact = nullptr, scatter = nullptr;
};

// Modules stay loaded: another communicator of the device will want them.
Functions load(CuDevice device, const std::string& path) {
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
  check_cuda(cuda().module_get_function(&f.compact, module, "compact"), "cuModuleGetFunction");
  check_cuda(cuda().module_get_function(&f.scatter, module, "scatter"), "cuModuleGetFunction");
  return f;
}

}  // namespace

KernelTable::KernelTable(CuDevice device, uint32_t block_size, const std::string& cache) {
  if (block_size < 32 || block_size > 1024 || (block_size & (block_size - 1)) != 0)
    throw Error("OMNIHVD_BLOCK_SIZE=" + std::to_string(block_size) +
                ": on GPUs it must be a power of two from 32 to 1024");
  const fs::path folder = cache_folder(cache) / source_digest() / architecture_of(device);
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    GpuKernels& k = kernels_[i];
    k.width_ = static_cast<uint32_t>(size_of(dtype));
    k.block_size_ = block_size;
    const std::string name = (is_float(dtype) ? "float" : "int") + std::to_string(8 * k.width_) +
                             "_" + std::to_string(block_size) + ".cubin";
    const Functions functions = load(device, (folder / name).string());
    k.compact_ = functions.compact;
    k.scatter_ = functions.scatter;
  }
}

void GpuKernels::compact(CuAddress tensor, uint64_t elements, uint32_t flags, CuAddress totals,
                         CuAddress bitmap, CuAddress records, CuAddress data,
                         CuStream stream) const {
  CuAddress segments = 0;
  uint32_t n_segments = 0;
  void* arguments[] = {&tensor, &elements, &segments, &n_segments, &flags,
                       &totals, &bitmap,   &records,  &data};
  check_cuda(
      cuda().launch_kernel(compact_, static_cast<unsigned>(kernels::compact_grid(elements, width_)),
                           1, 1, kernels::kCompactThreads, 1, 1, 0, stream, arguments, nullptr),
      "launching a kernel");
}

void GpuKernels::scatter(CuAddress tensor, uint64_t elements, CuAddress records, CuAddress count,
                         CuAddress data, CuStream stream) const {
  CuAddress segments = 0;
  uint32_t n_segments = 0;
  const uint64_t blocks = (elements + block_size_ - 1) / block_size_;
  void* arguments[] = {&tensor, &elements, &segments, &n_segments, &records, &count, &data};
  check_cuda(
      cuda().launch_kernel(
          scatter_, static_cast<unsigned>(kernels::scatter_grid(blocks, width_, block_size_)), 1, 1,
          kernels::kScatterThreads, 1, 1, 0, stream, arguments, nullptr),
      "launching a kernel");
}

}  // namespace omnihvd
