// Sums of streams over MPI's messages from rank to rank; benchmarks/bench/published.py calls them.
//
// split: SparCML's SSAR_Split_allgather and DSAR_Split_allgather (Renggli et al., SC 2019, section
// 5.3), and what Parallax's servers, one on each host, do with sparse variables (Kim et al.,
// EuroSys 2019, sections 3 and 4), which are cut into several partitions a server. Each rank sends
// every part to its owner, and each owner the sum of it to all. double: SSAR_Recursive_double:
// ranks exchange all that they have, in log2 N steps.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <vector>

#include "stream.h"

namespace peers {
namespace {

constexpr int kNumbers = 0, kValues = 1;  // the two messages of a stream

// A stream that comes from another rank, for which there is room whatever it has.
struct Incoming {
  int part, source;
  size_t rows;  // of the part
  std::unique_ptr<uint32_t[]> numbers;
  std::unique_ptr<float[]> values;
  std::array<int, 2> counts = {};
  int missing = 2;

  Stream stream(uint32_t width) const {
    const size_t listed = counts[kNumbers], there = counts[kValues] / width;
    return {listed == 0 && there > 0 ? nullptr : numbers.get(), values.get(), there};
  }
};

class Peer {
 public:
  // parts: of each rank.
  Peer(uint32_t rows, uint32_t width, int parts) : rows_(rows), width_(width), parts_(parts) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  void split(const Stream& mine, bool dense);
  void double_up(const Stream& mine);
  // In place; by double_up() or split().
  void sum(float* tensor, bool doubling);
  // Over what is in the tensor; where the sum has no row nothing is written.
  void put(float* tensor) const;
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  int all_parts() const { return size_ * parts_; }
  int owner(int part) const { return part / parts_; }
  uint32_t first_row(int part) const {
    return static_cast<uint32_t>(uint64_t{rows_} * part / all_parts());
  }
  size_t rows_of(int part) const { return first_row(part + 1) - first_row(part); }
  Stream slice(const Stream& whole, int part) const;
  void prepare();
  void post(Incoming* incoming, int kind);
  void send(const Stream& stream, int part, int kind, int to);
  void send_sum(int part, bool dense);
  void finish_sends();
  Incoming room(int part, int source, size_t rows) const;
  Stream exchange(const Stream& stream, int with, bool sends, bool receives);

  uint32_t rows_, width_;
  int parts_, rank_ = 0, size_ = 1;
  int64_t bytes_sent_ = 0;
  std::vector<Incoming> incoming_;  // contributions to parts of this rank, then other parts' sums
  std::vector<Sum> sums_;           // of this rank's parts
  std::vector<MPI_Request> receives_, sends_;
  std::vector<Stream> results_;         // of each part
  std::vector<Incoming> exchanged_;     // of double_up: one
  std::vector<Sum> whole_;              // the same
  std::unique_ptr<uint32_t[]> listed_;  // of sum()
  std::unique_ptr<float[]> values_;
};

Stream Peer::slice(const Stream& whole, int part) const {
  const uint32_t begin = first_row(part), end = first_row(part + 1);
  if (whole.dense()) return {nullptr, whole.values + size_t{begin} * width_, end - begin};
  const uint32_t* all = whole.numbers;
  const uint32_t* from = std::lower_bound(all, all + whole.rows, begin);
  const uint32_t* to = std::lower_bound(from, all + whole.rows, end);
  return {from, whole.values + (from - all) * width_, static_cast<size_t>(to - from)};
}

Incoming Peer::room(int part, int source, size_t rows) const {
  Incoming made{part, source, rows, nullptr, nullptr};
  made.numbers.reset(new uint32_t[rows]);
  made.values.reset(new float[rows * width_]);
  return made;
}

// Memory, once.
void Peer::prepare() {
  if (!sums_.empty()) return;
  const int first = rank_ * parts_;
  for (int part = first; part < first + parts_; ++part) {
    sums_.emplace_back(first_row(part), rows_of(part), width_);
    for (int source = 0; source < size_; ++source) {
      if (source != rank_) incoming_.push_back(room(part, source, rows_of(part)));
    }
  }
  for (int part = 0; part < all_parts(); ++part) {
    if (owner(part) != rank_) incoming_.push_back(room(part, owner(part), rows_of(part)));
  }
}

// kind: 0, contributions; 1, sums.
void Peer::post(Incoming* incoming, int kind) {
  const int tag = 4 * incoming->part + 2 * kind;
  const int rows = static_cast<int>(incoming->rows);
  incoming->missing = 2;
  MPI_Request* requests = &*receives_.insert(receives_.end(), 2, MPI_REQUEST_NULL);
  MPI_Irecv(incoming->numbers.get(), rows, MPI_UINT32_T, incoming->source, tag + kNumbers,
            MPI_COMM_WORLD, &requests[kNumbers]);
  MPI_Irecv(incoming->values.get(), rows * static_cast<int>(width_), MPI_FLOAT, incoming->source,
            tag + kValues, MPI_COMM_WORLD, &requests[kValues]);
}

void Peer::send(const Stream& stream, int part, int kind, int to) {
  const int tag = 4 * part + 2 * kind;
  const int listed = stream.dense() ? 0 : static_cast<int>(stream.rows);
  const int values = static_cast<int>(stream.rows * width_);
  MPI_Request* requests = &*sends_.insert(sends_.end(), 2, MPI_REQUEST_NULL);
  MPI_Isend(stream.numbers, listed, MPI_UINT32_T, to, tag + kNumbers, MPI_COMM_WORLD,
            &requests[kNumbers]);
  MPI_Isend(stream.values, values, MPI_FLOAT, to, tag + kValues, MPI_COMM_WORLD,
            &requests[kValues]);
  bytes_sent_ += 4 * (int64_t{listed} + values);
}

void Peer::finish_sends() {
  MPI_Waitall(static_cast<int>(sends_.size()), sends_.data(), MPI_STATUSES_IGNORE);
  sends_.clear();
}

void Peer::send_sum(int part, bool dense) {
  results_[part] = sums_[part - rank_ * parts_].take(dense);
  for (int other = 1; other < size_; ++other) {
    send(results_[part], part, 1, (rank_ + other) % size_);
  }
}

// dense: sums travel as all of their rows, whatever is in them.
void Peer::split(const Stream& mine, bool dense) {
  prepare();
  bytes_sent_ = 0;
  receives_.clear();
  results_.assign(all_parts(), {});
  const int first = rank_ * parts_;
  for (Incoming& incoming : incoming_) post(&incoming, owner(incoming.part) == rank_ ? 0 : 1);
  for (int i = 0; i < parts_; ++i) {
    for (int other = 1; other < size_; ++other) {
      const int to = (rank_ + other) % size_, part = to * parts_ + i;
      send(slice(mine, part), part, 0, to);
    }
  }
  std::vector<int> awaited(parts_, size_ - 1);
  std::vector<bool> begun(parts_, false);
  const auto begin = [&](int part) {
    if (!begun[part - first]) sums_[part - first].add(slice(mine, part));
    begun[part - first] = true;
  };
  const auto come = [&](Incoming* incoming) {
    const int part = incoming->part;
    if (owner(part) != rank_) {
      results_[part] = incoming->stream(width_);
      return;
    }
    begin(part);
    sums_[part - first].add(incoming->stream(width_));
    if (--awaited[part - first] == 0) send_sum(part, dense);
  };
  std::vector<int> done(receives_.size() + 1);
  std::vector<MPI_Status> statuses(receives_.size() + 1);
  for (size_t left = receives_.size(); left > 0;) {
    int count = 0;
    MPI_Waitsome(static_cast<int>(receives_.size()), receives_.data(), &count, done.data(),
                 statuses.data());
    left -= count;
    for (int i = 0; i < count; ++i) {
      Incoming* incoming = &incoming_[done[i] / 2];
      const int message = done[i] % 2;
      MPI_Get_count(&statuses[i], message == kNumbers ? MPI_UINT32_T : MPI_FLOAT,
                    &incoming->counts[message]);
      if (--incoming->missing == 0) come(incoming);
    }
  }
  for (int part = first; size_ == 1 && part < parts_; ++part) {
    begin(part);
    send_sum(part, dense);
  }
  finish_sends();
}

// With another rank, each way or one way; what came.
Stream Peer::exchange(const Stream& stream, int with, bool sends, bool receives) {
  receives_.clear();
  Incoming* incoming = &exchanged_[0];
  incoming->source = with;
  if (receives) post(incoming, 0);
  if (sends) send(stream, 0, 0, with);
  std::array<MPI_Status, 2> statuses;
  MPI_Waitall(static_cast<int>(receives_.size()), receives_.data(), statuses.data());
  finish_sends();
  if (!receives) return stream;
  MPI_Get_count(&statuses[kNumbers], MPI_UINT32_T, &incoming->counts[kNumbers]);
  MPI_Get_count(&statuses[kValues], MPI_FLOAT, &incoming->counts[kValues]);
  return incoming->stream(width_);
}

// Ranks beyond a power of two give theirs to one of the others, and get the sum from it.
void Peer::double_up(const Stream& mine) {
  if (whole_.empty()) {
    whole_.emplace_back(0, rows_, width_);
    exchanged_.push_back(room(0, 0, rows_));
  }
  bytes_sent_ = 0;
  int most = 1;
  while (2 * most <= size_) most *= 2;
  results_.assign(1, {});
  if (rank_ >= most) {
    exchange(mine, rank_ - most, true, false);
    results_[0] = exchange(mine, rank_ - most, false, true);
    return;
  }
  Sum& sum = whole_[0];
  sum.add(mine);
  bool only_mine = true;
  if (rank_ + most < size_) {
    sum.add(exchange(mine, rank_ + most, false, true));
    only_mine = false;
  }
  for (int step = 1; step < most; step *= 2) {
    const Stream so_far = only_mine ? mine : sum.take(false, true);
    sum.add(exchange(so_far, rank_ ^ step, true, true));
    only_mine = false;
  }
  results_[0] = sum.take(false);
  if (rank_ + most < size_) exchange(results_[0], rank_ + most, true, false);
}

void Peer::sum(float* tensor, bool doubling) {
  if (!listed_) {
    listed_.reset(new uint32_t[rows_]);
    values_.reset(new float[size_t{rows_} * width_]);
  }
  const Stream mine = list_of(tensor, rows_, width_, listed_.get(), values_.get());
  doubling ? double_up(mine) : split(mine, false);
  put(tensor);
}

void Peer::put(float* tensor) const {
  for (size_t part = 0; part < results_.size(); ++part) {
    const Stream& stream = results_[part];
    if (stream.dense()) {
      const size_t begin = results_.size() == 1 ? 0 : first_row(static_cast<int>(part));
      std::copy_n(stream.values, stream.rows * width_, tensor + begin * width_);
    }
    for (size_t i = 0; i < stream.rows && !stream.dense(); ++i) {
      std::copy_n(stream.values + i * width_, width_, tensor + size_t{stream.numbers[i]} * width_);
    }
  }
}

}  // namespace
}  // namespace peers

extern "C" {

using peers::Peer;

Peer* peers_new(uint32_t rows, uint32_t width, int parts) { return new Peer(rows, width, parts); }
void peers_free(Peer* peer) { delete peer; }

// numbers: null if all rows are there. The sum is the peer's until the next one.
void peers_split(Peer* peer, uint64_t rows, const uint32_t* numbers, const float* values,
                 int dense) {
  peer->split({numbers, values, rows}, dense != 0);
}
void peers_double(Peer* peer, uint64_t rows, const uint32_t* numbers, const float* values) {
  peer->double_up({numbers, values, rows});
}

// The same of a tensor, in place.
void peers_sum(Peer* peer, float* tensor, int doubling) { peer->sum(tensor, doubling != 0); }

// The last sum's rows, to where they belong; and the bytes that this rank sent for it.
void peers_put(const Peer* peer, float* tensor) { peer->put(tensor); }
int64_t peers_bytes_sent(const Peer* peer) { return peer->bytes_sent(); }

}  // extern "C"
