// _engine_tests.direct: small sums between hosts, with connections and without.
#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/direct/direct_rounds.h"
#include "algorithms/direct/direct_sum.h"
#include "base/error.h"
#include "python/sums.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

// DirectSum, with the arguments of SharedSum.
class DirectSums {
 public:
  DirectSums(const Settings& settings, int rank, int size, py::function allgather) {
    PyExchange exchange(rank, size, std::move(allgather));
    const py::gil_scoped_release release;
    std::vector<std::string> hosts;
    for (int r = 0; r < size; ++r) hosts.push_back("host" + std::to_string(r));
    sum_ = DirectSum::create(exchange, settings, hosts);
    if (!sum_) throw Error("no direct connections");
  }
  uint64_t allreduce(const void* in, void* out, uint64_t count, DType dtype, const Codec& codec) {
    const Call call{in, out, count, dtype, codec};
    return sum_->allreduce(call);
  }
  void pass(uint64_t count, DType dtype) { sum_->pass({nullptr, nullptr, count, dtype}); }
  std::string look() { return sum_->look(); }
  void abort(const std::string& why) { sum_->abort(why); }

 private:
  std::unique_ptr<DirectSum> sum_;
};

void interrupt(DirectSums& sum, const std::string& why) { sum.abort(why); }

using Message = std::vector<uint64_t>;  // its bytes, rounded up, and their number at the end

using Boxes = std::vector<std::vector<std::deque<Message>>>;  // [to][from]

// The messages to each rank, in the order in which their sender sent them.
class Mail final : public DirectRounds::Outbox {
 public:
  Mail(int rank, Boxes& boxes) : rank_(rank), boxes_(boxes) {}
  uint8_t* room() override { return reinterpret_cast<uint8_t*>(room_.data()); }
  void send(int rank, size_t bytes) override {
    if (bytes > DirectRounds::kMessage) throw Error("a message is too long");
    Message message(room_.begin(), room_.begin() + long((bytes + 7) / 8));
    message.push_back(bytes);
    boxes_[size_t(rank)][size_t(rank_)].push_back(std::move(message));
    sent_ += bytes;
  }
  uint64_t sent_ = 0;

 private:
  const int rank_;
  Boxes& boxes_;
  std::vector<uint64_t> room_ = std::vector<uint64_t>(DirectRounds::kMessage / 8);
};

// The sums of all ranks, in place, with messages in an order that the seed chooses; one of each
// `broken` is changed, 0: none. Returns the bytes that each rank sent, and how many messages were
// refused. Throws Error if a rank waits for ever.
std::pair<std::vector<uint64_t>, int> sum_all(std::vector<py::array> tensors,
                                              const std::string& name, uint32_t block,
                                              uint32_t seed, uint32_t broken) {
  const int ranks = int(tensors.size());
  std::mt19937 random(seed);
  Boxes boxes(tensors.size(), std::vector<std::deque<Message>>(tensors.size()));
  std::vector<std::unique_ptr<Mail>> mails;
  std::vector<std::unique_ptr<DirectRounds>> all;
  const DType dtype = dtype_of(tensors[0], name);
  const SmallCall call(uint64_t(tensors[0].size()), dtype);
  const auto begin = [&](int rank) {
    void* const data = tensors[size_t(rank)].mutable_data();
    all[size_t(rank)]->begin(data, data, call, 1);
  };
  std::vector<int> waiting;  // ranks that have not begun
  for (int rank = 0; rank < ranks; ++rank) {
    mails.push_back(std::make_unique<Mail>(rank, boxes));
    all.push_back(std::make_unique<DirectRounds>(rank, ranks, block, *mails.back()));
    waiting.push_back(rank);
  }
  int refused = 0;
  while (true) {
    std::vector<std::pair<int, int>> ready;  // to, from; from -1: begins
    for (const int rank : waiting) ready.emplace_back(rank, -1);
    for (int to = 0; to < ranks; ++to)
      for (int from = 0; from < ranks; ++from)
        if (std::find(waiting.begin(), waiting.end(), to) == waiting.end() &&
            !boxes[size_t(to)][size_t(from)].empty())
          ready.emplace_back(to, from);
    if (ready.empty()) break;
    const auto [to, from] = ready[random() % ready.size()];
    if (from < 0) {
      waiting.erase(std::find(waiting.begin(), waiting.end(), to));
      begin(to);
      continue;
    }
    auto& box = boxes[size_t(to)][size_t(from)];
    Message message = std::move(box.front());
    box.pop_front();
    const size_t bytes = message.back();
    auto* const data = reinterpret_cast<uint8_t*>(message.data());
    size_t size = bytes;
    if (broken && random() % broken == 0) {
      if (random() % 2)
        size = std::max(sizeof(DirectHeader), bytes - random() % bytes);
      else
        data[offsetof(DirectHeader, first) + random() % (bytes - offsetof(DirectHeader, first))] ^=
            uint8_t(1 + random() % 255);
    }
    auto& header = *reinterpret_cast<DirectHeader*>(data);
    if (header.kind > DirectHeader::result || header.from != uint32_t(from)) continue;
    // Exactly as long as it says: a sanitizer sees what is read beyond.
    const std::vector<uint64_t> exact(message.begin(), message.begin() + long((size + 7) / 8));
    if (!all[size_t(to)]->take(*reinterpret_cast<const DirectHeader*>(exact.data()), size))
      ++refused;
  }
  std::vector<uint64_t> sent;
  for (int rank = 0; rank < ranks; ++rank) {
    sent.push_back(mails[size_t(rank)]->sent_);
    if (!broken && !all[size_t(rank)]->complete()) throw Error("a rank waits for ever");
    for (int other = 0; other < ranks; ++other)
      if (!broken && other != rank && all[size_t(rank)]->lacks(other))
        throw Error("a complete rank lacks something");
  }
  return {sent, refused};
}

}  // namespace

void bind_direct(py::module_ m) {
  m.def("most_bytes", &DirectSum::most_bytes, py::arg("settings"), py::arg("hosts"));
  m.attr("message_bytes") = DirectRounds::kMessage;
  m.def("sum_all", &sum_all, py::arg("tensors"), py::arg("dtype"), py::arg("block"),
        py::arg("seed"), py::arg("broken") = 0);
  py::class_<DirectSums>(m, "DirectSum")
      .def(py::init<const Settings&, int, int, py::function>(), py::arg("settings"),
           py::arg("rank"), py::arg("size"), py::arg("allgather"))
      .def("allreduce", &allreduce<DirectSums>, py::arg("input"), py::arg("output"),
           py::arg("dtype") = "", py::arg("codec") = Codec())
      .def(
          "pass_by",
          [](DirectSums& sum, uint64_t count, const std::string& dtype) {
            sum.pass(count, dtype_named(dtype));
          },
          py::arg("count"), py::arg("dtype"))
      .def("look", &DirectSums::look, py::call_guard<py::gil_scoped_release>());
}

}  // namespace omnihvd
