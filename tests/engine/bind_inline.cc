// Workers and an aggregator of inline/ over a network that loses, duplicates and delays datagrams,
// with a clock that is a number; and the aggregator alone.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "innetwork/counts_dict.h"
#include "innetwork/jobs.h"
#include "innetwork/slot_aggregator.h"
#include "innetwork/slot_worker.h"
#include "python/sums.h"
#include "simulator/csrc/prng.h"

namespace omnihvd {
namespace {

namespace py = pybind11;
using Tensors = py::array;  // int32 or floats, [sums, workers, elements]
using simulation::Prng;

struct Network {
  double lost = 0, twice = 0, late = 0;
  double results_lost = 0;                           // besides
  uint64_t delay = 50, lateness = 20000, pause = 0;  // microseconds
  uint64_t least = 0;                                // of all delays
};

constexpr uint64_t kKey = 0x0123456789ABCDEFu;
constexpr uint64_t kStep = 100, kEnd = 600'000'000;  // microseconds

std::string bytes_of(const SlotAggregator::Answer& answer) {
  if (answer.to == SlotAggregator::To::nobody) return {};
  std::string bytes(reinterpret_cast<const char*>(&answer.head), sizeof answer.head);
  return bytes.append(static_cast<const char*>(answer.block.data), answer.block.size);
}

class InlineJobRun {
 public:
  InlineJobRun(const Tensors& tensors, uint16_t slots, bool dense, const Network& network,
               uint64_t seed, bool natural = false)
      : sums_(size_t(tensors.shape(0))),
        count_(size_t(tensors.shape(2))),
        bytes_(size_t(tensors.nbytes())),
        data_(static_cast<const uint8_t*>(tensors.data()),
              static_cast<const uint8_t*>(tensors.data()) + bytes_),
        shape_{count_, dtype_of(tensors, ""), uint32_t(tensors.shape(1)), slots, dense, natural},
        network_(network),
        prng_(seed),
        aggregator_(2, slots) {
    const size_t workers = size_t(tensors.shape(1));
    aggregator_.set_job(1, kKey, uint32_t(workers), INLINE_INT32);
    for (size_t w = 0; w < workers; ++w)
      ends_.push_back({SlotWorker({kKey, 1, uint16_t(w), slots}, 1000, 50000), {}, 0, 0});
  }

  // Whether all sums ended by then.
  bool run(uint64_t end = kEnd) {
    for (bool open = true; open && now_ < end; now_ += kStep) {
      open = false;
      for (size_t w = 0; w < ends_.size(); ++w) open |= step(w);
      while (!under_way_.empty() && under_way_.top().at <= now_) arrive();
    }
    return now_ < end;
  }
  // For each worker: whether the aggregator has the result that it waits for, and when the worker
  // last made progress.
  std::vector<std::pair<bool, uint64_t>> waiting() const {
    std::vector<std::pair<bool, uint64_t>> waiting;
    for (const End& end : ends_) {
      const auto [slot, round] = end.worker.awaited();
      const bool there = int32_t(aggregator_.round(1, slot).number - round) > 0;
      waiting.emplace_back(there, end.worker.moved_at());
    }
    return waiting;
  }

  const std::vector<uint8_t>& data() const { return data_; }
  uint64_t now() const { return now_; }
  std::tuple<uint64_t, uint64_t, uint64_t> sent() const {
    uint64_t sent = 0, again = 0, blocks = 0;
    for (const End& end : ends_) {
      sent += end.worker.counts().sent;
      again += end.worker.counts().again;
      blocks += end.worker.counts().with_block;
    }
    return {sent, again, blocks};
  }
  py::dict counts() const { return dict_of_counts(aggregator_.counts()); }

 private:
  struct End {
    SlotWorker worker;
    std::unique_ptr<InlineTensor> tensor;
    size_t begun;
    uint64_t begins_at;
  };
  struct Datagram {
    uint64_t at, order;
    int to;  // a worker; -1: the aggregator
    std::string bytes;
    bool operator<(const Datagram& other) const {
      return std::tie(other.at, other.order) < std::tie(at, order);
    }
  };

  bool step(size_t w) {
    End& end = ends_[w];
    if (end.worker.done()) {
      if (end.begun == sums_) return false;
      if (end.begins_at == 0) end.begins_at = now_ + 1 + prng_.below(network_.pause + 1);
      if (now_ < end.begins_at) return true;
      const size_t each = bytes_ / (sums_ * ends_.size());
      uint8_t* const at = data_.data() + (end.begun * ends_.size() + w) * each;
      InlineShape shape = shape_;
      shape.seed = uint32_t(end.begun);
      shape.rank = uint32_t(w);
      end.tensor = make_inline_tensor(at, shape);
      end.worker.begin(now_, *end.tensor);
      end.begins_at = 0;
      ++end.begun;
    }
    uint8_t out[INLINE_FULL_BYTES];
    while (const size_t size = end.worker.next(now_, out))
      send(-1, {reinterpret_cast<const char*>(out), size});
    return true;
  }

  void send(int to, const std::string& bytes) {
    if (to >= 0 && network_.results_lost > 0 && prng_.chance(network_.results_lost)) return;
    const int copies = (prng_.chance(network_.lost) ? 0 : 1) + prng_.chance(network_.twice);
    for (int i = 0; i < copies; ++i) {
      uint64_t at = now_ + 1 + network_.least + prng_.below(network_.delay + 1);
      if (prng_.chance(network_.late)) at += prng_.below(network_.lateness + 1);
      under_way_.push({at, order_++, to, bytes});
    }
  }

  void arrive() {
    const Datagram datagram = under_way_.top();
    under_way_.pop();
    const auto* const data = reinterpret_cast<const uint8_t*>(datagram.bytes.data());
    if (datagram.to >= 0) {
      ends_[size_t(datagram.to)].worker.take(now_, data, datagram.bytes.size());
      return;
    }
    inline_head head;
    std::memcpy(&head, data, sizeof head);
    const auto answer = aggregator_.take(data, datagram.bytes.size());
    for (size_t w = 0; w < ends_.size(); ++w)
      if (answer.to == SlotAggregator::To::all ||
          (answer.to == SlotAggregator::To::sender && w == head.worker))
        send(int(w), bytes_of(answer));
  }

  const size_t sums_, count_, bytes_;
  std::vector<uint8_t> data_;
  const InlineShape shape_;
  const Network network_;
  Prng prng_;
  SlotAggregator aggregator_;
  std::vector<End> ends_;
  std::priority_queue<Datagram> under_way_;
  uint64_t now_ = 1, order_ = 0;
};

py::tuple run_job(const Tensors& tensors, uint16_t slots, bool dense, const Network& network,
                  uint64_t seed, bool natural) {
  if (tensors.ndim() != 3 || !(tensors.flags() & py::array::c_style))
    throw py::value_error("tensors: [sums, workers, elements]");
  InlineJobRun job(tensors, slots, dense, network, seed, natural);
  const bool ended = job.run();
  Tensors out(tensors.dtype(),
              std::vector<py::ssize_t>{tensors.shape(0), tensors.shape(1), tensors.shape(2)});
  std::copy(job.data().begin(), job.data().end(), static_cast<uint8_t*>(out.mutable_data()));
  return py::make_tuple(ended, out, job.sent(), job.counts(), job.now());
}

std::vector<std::pair<bool, uint64_t>> waiting(const Tensors& tensors, uint16_t slots,
                                               const Network& network, uint64_t until) {
  InlineJobRun job(tensors, slots, false, network, 1);
  if (job.run(until)) throw py::value_error("the sums have ended");
  return job.waiting();
}

struct Jobs {
  Jobs(const std::string& secret, size_t most, uint16_t slots)
      : sums(most, slots), jobs(secret, sums, most, slots, 0, 0) {}
  SlotAggregator sums;
  InlineJobs jobs;
};

py::object answer_of(Jobs& jobs, uint64_t now, uint64_t from, const std::string& data) {
  const auto answer =
      jobs.jobs.take(now, from, reinterpret_cast<const uint8_t*>(data.data()), data.size());
  if (!answer) return py::none();
  return py::make_tuple(
      py::bytes(reinterpret_cast<const char*>(answer->bytes), sizeof answer->bytes),
      answer->changed);
}

// [(address, datagram)]
py::list questions_of(Jobs& jobs, uint64_t now) {
  py::list all;
  for (const auto& [to, bytes] : jobs.jobs.questions(now))
    all.append(py::make_tuple(to, py::bytes(reinterpret_cast<const char*>(bytes), sizeof bytes)));
  return all;
}

py::tuple aggregator_answer(SlotAggregator& aggregator, const std::string& data) {
  const auto answer = aggregator.take(reinterpret_cast<const uint8_t*>(data.data()), data.size());
  return py::make_tuple(int(answer.to), py::bytes(bytes_of(answer)));
}

}  // namespace

void bind_inline(py::module_ m) {
  py::class_<Network>(m, "Network")
      .def(py::init([](double lost, double twice, double late, uint64_t delay, uint64_t lateness,
                       uint64_t pause, double results_lost, uint64_t least) {
             return Network{lost, twice, late, results_lost, delay, lateness, pause, least};
           }),
           py::kw_only(), py::arg("lost") = 0.0, py::arg("twice") = 0.0, py::arg("late") = 0.0,
           py::arg("delay") = 50, py::arg("lateness") = 20000, py::arg("pause") = 0,
           py::arg("results_lost") = 0.0, py::arg("least") = 0);
  m.def("run_job", &run_job, py::arg("tensors"), py::arg("slots"), py::arg("dense"),
        py::arg("network"), py::arg("seed"), py::arg("natural") = false,
        "(ended, sums, (sent, again, blocks), counts, microseconds) of tensors, int32 or floats "
        "[sums, workers, elements]; sums: of the same shape.");
  m.def("waiting", &waiting, py::arg("tensors"), py::arg("slots"), py::arg("network"),
        py::arg("until"),
        "For sums that have not ended by then: [worker], (whether the awaited result is there, "
        "microsecond of its last progress).");
  py::class_<SlotAggregator>(m, "SlotAggregator")
      .def(py::init<size_t, uint16_t>())
      .def("set_job", &SlotAggregator::set_job, py::arg("job"), py::arg("key"), py::arg("workers"),
           py::arg("numbers") = uint8_t{INLINE_INT32})
      .def("take", &aggregator_answer, "(to: 0 nobody, 1 all, 2 the sender; datagram)")
      .def_property_readonly("counts", [](const SlotAggregator& aggregator) {
        return dict_of_counts(aggregator.counts());
      });
  py::class_<Jobs>(m, "Jobs")
      .def(py::init<std::string, size_t, uint16_t>())
      .def("take", &answer_of, "(datagram, job that has changed or None), or None")
      .def("questions", &questions_of, "[(address, datagram)]")
      .def("take_refusal", [](Jobs& jobs, uint64_t now,
                              uint64_t from) { return jobs.jobs.take_refusal(now, from); })
      .def_readonly("sums", &Jobs::sums);
  m.def("signed_head",
        [](const std::string& secret, uint64_t session, uint8_t kind, uint8_t flags,
           uint16_t worker, uint32_t workers, uint16_t slot, uint32_t awaited, uint8_t numbers) {
          inline_head head{};
          head.key = session;
          head.kind = kind;
          head.flags = flags;
          head.worker = worker;
          head.round = workers;
          head.slot = slot;
          head.block = awaited;
          head.numbers = numbers;
          uint8_t out[kSignedBytes];
          InlineSecret(secret).sign(head, out);
          return py::bytes(reinterpret_cast<const char*>(out), sizeof out);
        });
}

}  // namespace omnihvd
