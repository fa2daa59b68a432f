// Stands in for one of Horovod's libraries with Gloo inside: the same symbols and layouts, and sums
// that it makes itself, in a file that the ranks share. For real processes without Horovod.
//
// With -DANOTHER_FUNCTION, -DOTHER_ARGUMENTS or -DANOTHER_MEMBER it is laid out in another way.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef OTHER_ARGUMENTS
using Count = long;
#else
using Count = int;
#endif

namespace {

constexpr int kMostRanks = 4;
constexpr size_t kRoom = 8 << 20;  // bytes of a rank

struct Shared {
  std::atomic<int> arrived[2];
  char room[kMostRanks][kRoom];
};

}  // namespace

namespace gloo {

struct float16 {
  uint16_t bits;
};

class Context {
 public:
  Context(const char* file, int rank, int size) : rank(rank), size(size) {
    const int descriptor = open(file, O_RDWR | O_CREAT, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0)
      throw std::runtime_error("no shared file");
    void* const at =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    shared = static_cast<Shared*>(at);
  }
  virtual ~Context() { munmap(shared, sizeof(Shared)); }

  // Every other meeting counts in the other counter.
  void meet() {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::seconds(5);
    ++meetings;
    const int turn = (meetings + 1) / 2;
    std::atomic<int>& arrived = shared->arrived[meetings % 2];
    ++arrived;
    while (arrived < turn * size) {
      if (Clock::now() > end) throw std::runtime_error("Timed out waiting 5000ms");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const int rank, size;
  Shared* shared = nullptr;
  int meetings = 0;
};

}  // namespace gloo

namespace horovod {
namespace common {

enum ReduceOp { AVERAGE = 0, SUM = 1, ADASUM = 2, MIN = 3 };

struct GlooContext {
#ifdef ANOTHER_MEMBER
  long another[2] = {1, 2};
#endif
  std::shared_ptr<gloo::Context> global_ctx, ctx, cross_ctx, local_ctx;
  bool enabled = true;
};

class IGlooAlgorithms {
 public:
#ifdef ANOTHER_FUNCTION
  virtual void Another() = 0;
#endif
  virtual void Allreduce(void* data, Count count, ReduceOp op) = 0;
  virtual void Allgather(void* in, void* out, int* counts, int* offsets) = 0;
  virtual void Broadcast(void* data, int count, int root) = 0;
  virtual void Alltoall(void*, void*, std::vector<int64_t>&, std::vector<int64_t>&) = 0;
  virtual void Reducescatter(void* data, std::vector<int>& counts) = 0;
  virtual int ElementSize() const = 0;
  virtual ~IGlooAlgorithms() = default;
};

template <typename T>
class GlooAlgorithms : public IGlooAlgorithms {
 public:
  explicit GlooAlgorithms(GlooContext* context) : context_(context) {}
#ifdef ANOTHER_FUNCTION
  void Another() override {}
#endif
  void Allreduce(void* data, Count count, ReduceOp op) override;
  void Allgather(void* in, void* out, int* counts, int* offsets) override;
  void Broadcast(void*, int, int) override {}
  void Alltoall(void*, void*, std::vector<int64_t>&, std::vector<int64_t>&) override {}
  void Reducescatter(void* data, std::vector<int>& counts) override;
  int ElementSize() const override { return sizeof(T); }

 private:
  GlooContext* context_;
};

template <typename T>
void add(T& sum, const T& value) {
  sum = static_cast<T>(sum + value);
}
template <>
void add(gloo::float16& sum, const gloo::float16& value) {
  sum.bits = static_cast<uint16_t>(sum.bits + value.bits);  // bits will do
}

template <typename T>
void GlooAlgorithms<T>::Allreduce(void* data, Count count, ReduceOp op) {
  gloo::Context& ctx = *context_->ctx;
  auto* const mine = static_cast<T*>(data);
  std::memcpy(ctx.shared->room[ctx.rank], mine, count * sizeof(T));
  ctx.meet();
  for (int rank = 0; rank < ctx.size; ++rank) {
    const auto* const theirs = reinterpret_cast<const T*>(ctx.shared->room[rank]);
    for (Count i = 0; op == SUM && rank != ctx.rank && i < count; ++i) add(mine[i], theirs[i]);
  }
  ctx.meet();
}

// A rank's share comes to the beginning.
template <typename T>
void GlooAlgorithms<T>::Reducescatter(void* data, std::vector<int>& counts) {
  gloo::Context& ctx = *context_->ctx;
  auto* const mine = static_cast<T*>(data);
  const auto own = counts.begin() + ctx.rank;
  const int begin = std::accumulate(counts.begin(), own, 0);
  const int count = std::accumulate(own, counts.end(), begin);
  std::memcpy(ctx.shared->room[ctx.rank], mine, size_t(count) * sizeof(T));
  ctx.meet();
  for (int i = 0; i < *own; ++i) {
    mine[i] = reinterpret_cast<const T*>(ctx.shared->room[0])[begin + i];
    for (int rank = 1; rank < ctx.size; ++rank)
      add(mine[i], reinterpret_cast<const T*>(ctx.shared->room[rank])[begin + i]);
  }
  ctx.meet();
}

template <typename T>
void GlooAlgorithms<T>::Allgather(void* in, void* out, int* counts, int* offsets) {
  gloo::Context& ctx = *context_->ctx;
  std::memcpy(ctx.shared->room[ctx.rank], static_cast<T*>(in) + offsets[ctx.rank],
              counts[ctx.rank] * sizeof(T));
  const auto take = [&](int rank) {
    T* const at = std::accumulate(counts, counts + rank, static_cast<T*>(out));
    std::memcpy(at, ctx.shared->room[rank], counts[rank] * sizeof(T));
  };
  try {
    ctx.meet();
  } catch (const std::runtime_error&) {  // a ring: nothing comes through a rank that is missing
    for (int i = 1, rank = ctx.rank; i < ctx.size; ++i) {
      rank = (rank + ctx.size - 1) % ctx.size;
      if (ctx.shared->room[rank][0] == 0) break;
      take(rank);
    }
    throw;
  }
  for (int rank = 0; rank < ctx.size; ++rank) take(rank);
  ctx.meet();
}

IGlooAlgorithms* GetAlgorithmsForType(char type, GlooContext* context) {
  switch (type) {
    case 'h': return new GlooAlgorithms<uint8_t>(context);
    case 'a': return new GlooAlgorithms<int8_t>(context);
    case 't': return new GlooAlgorithms<uint16_t>(context);
    case 's': return new GlooAlgorithms<int16_t>(context);
    case 'i': return new GlooAlgorithms<int32_t>(context);
    case 'l': return new GlooAlgorithms<int64_t>(context);
    case 'e': return new GlooAlgorithms<gloo::float16>(context);
    case 'f': return new GlooAlgorithms<float>(context);
    case 'd': return new GlooAlgorithms<double>(context);
    case 'b': return new GlooAlgorithms<bool>(context);
    default: throw std::logic_error("no such type");
  }
}

}  // namespace common
}  // namespace horovod

namespace {
horovod::common::GlooContext context;
std::string failure;
int rank = -1, size = -1;
}  // namespace

extern "C" {

int horovod_rank() { return rank; }
int horovod_size() { return size; }

// As hvd.init() and hvd.shutdown(). The ranks of a job have a new file each time.
void begin(const char* file, int job_rank, int job_size) {
  rank = job_rank;
  size = job_size;
  context.ctx = std::make_shared<gloo::Context>(file, rank, size);
}
void end() { context.ctx.reset(); }

// As Horovod's background thread does. Null, or what was thrown.
const char* allreduce(char type, void* data, long count, int op) {
  try {
    std::unique_ptr<horovod::common::IGlooAlgorithms> algorithms(
        horovod::common::GetAlgorithmsForType(type, &context));
    algorithms->Allreduce(data, static_cast<Count>(count),
                          static_cast<horovod::common::ReduceOp>(op));
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}

const char* reducescatter(char type, void* data, const int* counts) {
  try {
    std::unique_ptr<horovod::common::IGlooAlgorithms> algorithms(
        horovod::common::GetAlgorithmsForType(type, &context));
    std::vector<int> all(counts, counts + size);
    algorithms->Reducescatter(data, all);
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}
}
