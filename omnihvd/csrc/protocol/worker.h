// A worker's side of one collective, over the slots of one progress thread. Pure: frames in, frames
// out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/frame.h"
#include "protocol/layout.h"
#include "protocol/tensor.h"

namespace omnihvd {

// How much of a tensor is inspected at once before other frames get a turn: 0.1 to 0.2 ms.
constexpr size_t kInspectAtOnce = 4 << 20;  // bytes

class Worker {
 public:
  // Takes part with the slots s where s % streams == stream. The tensor must outlive the worker.
  // scan_ahead: how many positions past a window the worker inspects for non-zero blocks to name:
  // at least these, at most twice as many, and no less than a window. It names as many blocks as
  // fill a window, which is enough to keep windows full: even the worker that has named least far
  // has named that many. A list (Tensor::listed) is known to its end, so it is looked through to
  // its end. local_aggregator: the one of this process; its results may refer to the tensor's own
  // memory.
  Worker(const Layout& layout, Tensor& tensor, uint32_t scan_ahead, uint32_t stream,
         uint32_t streams, std::optional<uint32_t> local_aggregator = {});

  // The next slot's first contribution, in turn over all slots of all aggregators; false once all
  // have been started. `frame` is valid until the next call of start or on_result.
  bool start(uint32_t* aggregator, Frame* frame);

  // Takes an aggregator's result; true if `reply` is this worker's contribution to the next round.
  // Throws Error, and changes nothing, if this worker does not wait for the result: `frame` is not
  // trusted.
  bool on_result(uint32_t aggregator, const Frame& frame, Frame* reply);

  bool done() const { return open_slots_ == 0; }
  // Aggregators that still owe a result.
  std::vector<uint32_t> awaited() const;
  uint64_t nonzero_blocks() const { return nonzero_blocks_; }
  uint64_t inspected_blocks() const { return inspected_blocks_; }
  uint64_t result_blocks() const { return result_blocks_; }

 private:
  struct Slot {
    uint64_t lo = 0, hi = 0;      // the window
    uint64_t seen = 0;            // all positions below have been inspected
    uint64_t named = 0;           // all positions below have been named to the aggregator
    std::vector<uint64_t> found;  // non-zero positions not yet sent, ascending
    size_t first_found = 0;       // entries before have been sent
    size_t seen_found = 0;        // entries from here on lie beyond `seen`
    // In integer sums: the window's blocks, and the exponents of their scales.
    std::vector<uint64_t> window;
    std::vector<uint8_t> exponents;
    uint32_t round = 0;
    bool done = false;

    uint8_t exponent_at(uint64_t position) const;  // of a block in the window
    // In `found`: those seen and not yet sent begin and end, and the first of them not below.
    auto unsent() const { return found.begin() + ptrdiff_t(first_found); }
    auto seen_end() const { return found.begin() + ptrdiff_t(seen_found); }
    auto first_unsent(uint64_t position) const {
      return std::lower_bound(unsent(), seen_end(), position);
    }
  };

  Slot& slot_of(uint32_t aggregator, uint32_t slot);
  uint32_t slot_at(size_t index) const {  // in slots_
    return uint32_t(index / layout_.shape().aggregators) * streams_ + stream_;
  }
  void take_list(const std::vector<uint64_t>& blocks);
  void look_ahead(Slot& state, uint32_t slot);
  void inspect_row(uint32_t slot);
  void contribute(Slot& state, uint32_t aggregator, uint32_t slot, Frame* frame);
  void read_block(const Slot& state, uint32_t aggregator, uint64_t block, uint64_t position,
                  Frame* frame);
  void name_exponents(uint32_t aggregator, Frame* frame);
  void check_exponents(const Slot& state, const Frame& frame) const;
  void write(const Slot& state, uint32_t aggregator, const Frame& frame);
  void write_zeros(uint32_t aggregator, uint32_t slot, uint64_t first, uint64_t last);

  const Layout& layout_;
  Tensor& tensor_;
  const bool listed_;
  const uint64_t scan_ahead_;
  const uint32_t stream_, streams_;
  const std::optional<uint32_t> local_aggregator_;
  const Arithmetic arithmetic_;
  std::vector<uint64_t> inspected_;  // [own slot]: positions below, of all aggregators
  std::vector<Slot> slots_;          // [own slot][aggregator]
  size_t started_ = 0;
  size_t open_slots_;
  uint64_t inspected_blocks_ = 0;
  uint64_t nonzero_blocks_ = 0;
  uint64_t result_blocks_ = 0;
};

}  // namespace omnihvd
