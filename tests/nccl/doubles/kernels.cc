#include "kernels.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>

#include "memory.h"

namespace doubles {
namespace {

using u32 = uint32_t;
using u64 = uint64_t;

std::atomic<bool> ends_in_rest{false};
const char* running = nullptr;  // guarded by device_mutex()

// --- what a kernel is given, and what its emulation takes

// arguments[i] points to the i-th.
template <typename T>
T argument(void** arguments, size_t i) {
  T value;
  std::memcpy(&value, arguments[i], sizeof value);
  return value;
}

uint8_t* found(u64 address, size_t bytes) {
  uint8_t* const host = host_of(address, bytes);
  if (host == nullptr) die("a kernel was given a wrong address, or too little memory behind it");
  return host;
}

struct Address {
  u64 value;
};
struct Union {  // of abi.cuh
  Address united, prefix, starts;
  u64 numbers[4];
};

template <typename T>
T translated(T number) {
  return number;
}
Address translated(Address a) { return {u64(found(a.value, 1))}; }
Union translated(Union u) {
  for (Address* const at : {&u.united, &u.prefix, &u.starts}) at->value = u64(found(at->value, 4));
  return u;
}

template <typename T>
T passed(const T& number) {
  return number;
}
uint8_t* passed(const Address& a) { return reinterpret_cast<uint8_t*>(a.value); }
const Union* passed(const Union& u) { return &u; }

using Run = std::function<const char*(u64 ctas, unsigned seed)>;

template <typename... Arguments, size_t... I>
Run bound(void* entry, void** arguments, std::index_sequence<I...>) {
  const std::tuple<Arguments...> held{translated(argument<Arguments>(arguments, I))...};
  return [=](u64 ctas, unsigned seed) {
    using Entry =
        const char* (*)(decltype(passed(std::declval<const Arguments&>()))..., u64, unsigned);
    return reinterpret_cast<Entry>(entry)(passed(std::get<I>(held))..., ctas, seed);
  };
}
template <typename... Arguments>
Run bind(void* entry, void** arguments) {
  return bound<Arguments...>(entry, arguments, std::index_sequence_for<Arguments...>());
}

struct Kernel {
  unsigned threads;
  Run (*bind)(void* entry, void** arguments);
};

// As in abi.cuh.
const std::map<std::string, Kernel>& kernels() {
  static const auto& all = *new std::map<std::string, Kernel>{
      {"mark", {128, bind<Address, u64, u32, u32, Address>}},
      {"unite",
       {128, bind<Address, Address, u64, u64, Address, Address, Address, Address, Address, Address,
                  u64>}},
      {"gather", {128, bind<Address, u64, Union, Address>}},
      {"spread", {128, bind<Address, u64, Union, Address, u32>}},
      {"rest", {128, bind<Address, Address, u64, Union, Address, Address, u32, double, u32>}},
  };
  return all;
}

// Pieces that have a size by the arguments; of the others the beginnings are looked
// at.
void check(const std::string& name, void** a, unsigned grid) {
  const auto has = [a](size_t i, u64 bytes) { found(argument<u64>(a, i), bytes); };
  const auto number = [a](size_t i) { return argument<u64>(a, i); };
  if (name == "rest") {
    has(0, number(2)), has(1, number(2));
  } else if (name == "unite") {
    const u64 words = number(2), chunks = (words + number(3) - 1) / number(3);
    has(0, words * 32 + 4), has(1, words * 32 + 4), has(4, words * 4), has(5, words * 4);
    has(6, chunks * 8), has(7, 4), has(8, (chunks + 1) * 8), has(9, 32);
  } else {
    has(0, number(1));
  }
  if (grid == 0 || (grid != 1 && name == "rest")) die("a kernel was launched with a wrong grid");
}

// --- running it

// Which process of a job uses the GPU.
class Turn {
 public:
  Turn() {
    if (!kernels_are("turns")) return;
    file_ = open((std::string(std::getenv("NCCL_DOUBLE_FOLDER")) + "/turn").c_str(),
                 O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0) die("no file to take turns by");
  }
  void take() const {
    if (file_ >= 0 && flock(file_, LOCK_EX) != 0) die("flock failed");
  }
  void give() const {
    if (file_ >= 0) flock(file_, LOCK_UN);
  }

 private:
  int file_ = -1;
};
const Turn& turn() {
  static const Turn one;
  return one;
}

// A grid as large as a GPU's takes the emulation long; kernels must do with a smaller one as well.
u64 few(u64 grid) { return grid < 3 ? grid : 3; }

unsigned seed() {
  static std::atomic<unsigned> next{0};
  return next++;
}

void run(const std::string& name, const Run& kernel, unsigned grid) {
  const std::lock_guard<std::mutex> lock(device_mutex());
  running = name.c_str();
  if (ends_in_rest && name == "rest") kill(getpid(), SIGKILL);
  turn().take();
  const char* const failure = kernel(few(grid), seed());
  turn().give();
  if (failure != nullptr) die(failure);
  Stream::spend(3000);
}

}  // namespace

std::mutex& device_mutex() {
  static std::mutex& one = *new std::mutex;  // the emulation runs one kernel at a time
  return one;
}

bool kernels_are(const char* how) {
  static const char* const setting = std::getenv("CUDA_DOUBLE_KERNELS");
  return setting != nullptr && std::strcmp(setting, how) == 0;
}

void end_in_rest() { ends_in_rest = true; }

void launch(const std::string& name, void* entry, unsigned grid, unsigned threads, Stream& stream,
            void** arguments) {
  const Kernel& kernel = kernels().at(name);
  if (threads != kernel.threads) die("a kernel was launched with a wrong number of threads");
  check(name, arguments, grid);
  const char *const broken = std::getenv("CUDA_DOUBLE_BROKEN"), *const rank = std::getenv("RANK");
  if (broken && rank && rank + (":" + name) == broken) return;  // it does nothing
  const Run made = kernel.bind(entry, arguments);
  stream.queue([=] { run(name, made, grid); });
}

}  // namespace doubles

// A kernel waits for something (__nanosleep of the emulation): only `rest` may, for its host.
extern "C" void double_give_way() {
  using namespace doubles;
  if (std::strcmp(running, "rest") != 0) die("a kernel waits that must not");
  turn().give();
  if (kernels_are("turns")) usleep(100);
  turn().take();
}
