#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "api/omnihvd.h"
#include "base/error.h"
#include "communicator/communicator.h"

namespace {

using namespace omnihvd;

#define OMNIHVD_SAME(dtype, name, ...) static_assert(int(DType::dtype) == name);
OMNIHVD_SAME(f16, OMNIHVD_FLOAT16)
OMNIHVD_SAME(bf16, OMNIHVD_BFLOAT16)
OMNIHVD_SAME(f32, OMNIHVD_FLOAT32)
OMNIHVD_SAME(f64, OMNIHVD_FLOAT64)
OMNIHVD_SAME(i8, OMNIHVD_INT8)
OMNIHVD_SAME(u8, OMNIHVD_UINT8)
OMNIHVD_SAME(i32, OMNIHVD_INT32)
OMNIHVD_SAME(i64, OMNIHVD_INT64)
#undef OMNIHVD_SAME

thread_local std::string error_text;

// No exception may reach C.
template <typename Work>
int or_error(Work work) {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    error_text = "this process has no more memory";
  } catch (const std::exception& why) {
    error_text = why.what();
  }
  return -1;
}

// Texts of any size over a function that gathers equal sizes.
class CExchange : public Exchange {
 public:
  CExchange(int rank, int size, omnihvd_allgather gather, void* context)
      : Exchange(rank, size), gather_(gather), context_(context) {}
  std::vector<std::string> allgather(const std::string& mine) override {
    const uint64_t bytes = mine.size();
    std::vector<uint64_t> sizes(size_t(size_), 0);
    gather(&bytes, sizes.data(), sizeof bytes);
    const size_t most = *std::max_element(sizes.begin(), sizes.end());
    std::string padded = mine, all(most * sizes.size(), '\0');
    padded.resize(most);
    if (most > 0) gather(padded.data(), all.data(), most);
    std::vector<std::string> texts;
    for (size_t from = 0; from < sizes.size(); ++from)
      texts.push_back(all.substr(from * most, sizes[from]));
    return texts;
  }

 private:
  void gather(const void* mine, void* all, size_t size) {
    if (gather_(context_, mine, all, size) != 0)
      throw Error("the caller's allgather has failed on rank " + std::to_string(rank_));
  }

  const omnihvd_allgather gather_;
  void* const context_;
};

template <typename T>
T* allocate(size_t bytes) {
  void* const memory = std::malloc(std::max<size_t>(bytes, 1));
  if (!memory) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

}  // namespace

struct omnihvd_group {
  omnihvd_group(int rank, int size, omnihvd_allgather gather, void* context)
      : exchange(rank, size, gather, context), communicator(size) {}

  CExchange exchange;
  Communicator communicator;
};

int omnihvd_group_new(int rank, int size, omnihvd_allgather allgather, void* context,
                      omnihvd_group** group) {
  return or_error([&] {
    if (!allgather || !group || rank < 0 || rank >= size)
      throw Error("a group needs a rank from 0 to its size - 1, and an allgather");
    auto made = std::make_unique<omnihvd_group>(rank, size, allgather, context);
    made->communicator.meet(made->exchange);
    *group = made.release();
  });
}

void omnihvd_group_free(omnihvd_group* group) { delete group; }

int omnihvd_allreduce_blocks(omnihvd_group* group, const void* values, const int64_t* indices,
                             uint64_t block_count, uint64_t block_length, uint64_t blocks,
                             omnihvd_dtype dtype, void* out, omnihvd_block_list* list) {
  if (list) *list = {0, nullptr, nullptr};
  return or_error([&] {
    if (!group || unsigned(dtype) >= unsigned(kDTypes) || !out == !list ||
        (block_count > 0 && (!values || !indices)))
      throw Error("an allreduce of blocks needs a group, a dtype, a list, and an out or a list");
    const ListedSums& sums = group->communicator.sum_lists(
        {values, indices, block_count, block_length, blocks, DType(dtype), out}, group->exchange);
    if (out) return;
    list->indices = allocate<int64_t>(sums.count() * sizeof(int64_t));
    list->values = allocate<uint8_t>(sums.count() * block_length * size_of(DType(dtype)));
    sums.take(list->indices, list->values);
    list->block_count = sums.count();
  });
}

void omnihvd_block_list_free(omnihvd_block_list* list) {
  std::free(list->indices);
  std::free(list->values);
  *list = {0, nullptr, nullptr};
}

const char* omnihvd_error(void) { return error_text.c_str(); }
