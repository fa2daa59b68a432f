// Runs a target without libFuzzer, at the compiler's full speed: changed copies of given inputs.
// libFuzzer finds inputs that reach new code; this runs many more of their neighbours.
//
//   mutate_NAME RUNS SEED FOLDER...
//
// If an oracle fails, or a run takes 20 s, it leaves the input in ./failed-NAME-SEED.
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "../input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

using omnihvd::fuzz::Bytes;

namespace {

constexpr size_t kLargest = 4096;
constexpr int kRunSeconds = 20;

std::string file;  // where a failed input goes
Bytes input;
volatile uint64_t runs = 0;

void keep(int signal) {
  static uint64_t seen = UINT64_MAX;
  if (signal == SIGALRM && runs != seen) {
    seen = runs;
    return;
  }
  const int to = open(file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (to < 0 || write(to, input.data(), input.size()) < 0) _exit(3);
  static const char text[] = "the input is in the folder, as failed-*\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(3);
  _exit(1);
}

std::vector<Bytes> read_all(char** folders) {
  std::vector<Bytes> all{{}};
  for (; *folders; ++folders)
    for (const auto& entry : std::filesystem::directory_iterator(*folders)) {
      std::ifstream from(entry.path(), std::ios::binary);
      all.emplace_back(std::istreambuf_iterator<char>(from), std::istreambuf_iterator<char>());
      if (all.back().size() > kLargest) all.pop_back();
    }
  return all;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t end) { return end ? random_() % end : 0; }

  // One change: of a bit, a byte or a number, or bytes that go, come, or come from another input.
  void change(Bytes* bytes, const Bytes& other) {
    static constexpr uint8_t kEdges[] = {0,  1,  2,  3,  7,   8,   9,   15,
                                         16, 31, 32, 64, 127, 128, 254, 255};
    const size_t at = below(bytes->size()), most = bytes->size() - at;
    const auto from = bytes->begin() + std::ptrdiff_t(at);
    switch (below(bytes->empty() ? 2 : 8)) {
      case 0: {
        const Bytes fresh(1 + below(8), uint8_t(random_()));
        bytes->insert(from, fresh.begin(), fresh.end());
        break;
      }
      case 1: {
        const size_t begin = below(other.size());
        const size_t count = std::min<size_t>(1 + below(64), other.size() - begin);
        const auto source = other.begin() + std::ptrdiff_t(begin);
        if (below(2))
          bytes->insert(from, source, source + std::ptrdiff_t(count));
        else
          std::copy_n(source, std::min(count, most), from);
        break;
      }
      case 2:
        bytes->erase(from, from + std::ptrdiff_t(std::min<size_t>(1 + below(16), most)));
        break;
      case 3: bytes->resize(at); break;
      case 4: *from ^= uint8_t(1 << below(8)); break;
      case 5: *from = kEdges[below(std::size(kEdges))]; break;
      case 6: *from = uint8_t(*from + below(9) - 4); break;
      default: *from = uint8_t(random_());
    }
    if (bytes->size() > kLargest) bytes->resize(kLargest);
  }

 private:
  std::minstd_rand random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const uint64_t all = std::strtoull(argv[1], nullptr, 10);
  file = "failed-" + std::filesystem::path(argv[0]).filename().string() + "-" + argv[2];
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM})
    ::signal(signal, keep);
  const itimerval watch{{kRunSeconds, 0}, {kRunSeconds, 0}};
  setitimer(ITIMER_REAL, &watch, nullptr);
  const std::vector<Bytes> inputs = read_all(argv + 3);
  Mutator mutator(std::strtoull(argv[2], nullptr, 10) + 1);
  for (; runs < all; runs = runs + 1) {
    input = inputs[mutator.below(inputs.size())];
    for (size_t left = 1 + mutator.below(6); left > 0; --left)
      mutator.change(&input, inputs[mutator.below(inputs.size())]);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu runs of changed copies of %zu inputs\n", static_cast<unsigned long long>(all),
              inputs.size());
  return 0;
}
