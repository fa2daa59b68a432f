#include "innetwork/slot_aggregator.h"

#include <cstddef>
#include <cstring>
#include <new>

#include "innetwork/fpisa.h"
#include "innetwork/integers.h"

namespace omnihvd {
namespace {

const BlockOps& ops_of(uint8_t numbers) {
  switch (numbers) {
    case INLINE_FLOAT32: return block_ops(DType::f32);
    case INLINE_FPISA: return fpisa::ops(false);
    case INLINE_FPISA_A: return fpisa::ops(true);
    default: return block_ops(DType::i32);
  }
}

}  // namespace

static_assert(sizeof(inline_head) == INLINE_HEAD_BYTES);
static_assert(sizeof(fpisa::Register) == sizeof(uint64_t));

const char* const kInlineCountNames[kInlineCounts] = {"taken", "results", "answers",    "duplicate",
                                                      "old",   "early",   "impossible", "short",
                                                      "long",  "forged",  "other_job",  "stranger"};

SlotAggregator::SlotAggregator(size_t jobs, uint16_t slots)
    : slots_per_job_(slots),
      jobs_(jobs),
      slots_(static_cast<Slot*>(std::calloc(jobs * slots, sizeof(Slot)))) {
  if (!slots_) throw std::bad_alloc();
}

void SlotAggregator::set_job(size_t job, uint64_t key, uint32_t workers, uint8_t numbers) {
  const bool takes_codes = numbers == INLINE_INT32 || numbers == INLINE_NATURAL;
  jobs_[job] = {key, workers, 0, &ops_of(numbers), takes_codes};
  for (size_t i = 0; i < slots_per_job_; ++i) {
    Slot& slot = slots_[job * slots_per_job_ + i];
    slot.state = {};  // results of the last job that was here are not for this one
    slot_reset(&slot.state, workers);
  }
}

bool SlotAggregator::is_contribution(const uint8_t* data, size_t size) {
  return size <= offsetof(inline_head, kind) ||
         data[offsetof(inline_head, kind)] == INLINE_CONTRIBUTION;
}

SlotAggregator::Answer SlotAggregator::refuse(InlineCount what) {
  count(what);
  return {To::nobody, 0, {}, {}};
}

SlotAggregator::Answer SlotAggregator::result(const inline_head& head, const Slot& slot,
                                              const slot_decision& decision, To to) {
  const inline_result& from = slot.state.results[decision.version];
  inline_head result = head;
  result.kind = INLINE_RESULT;
  result.flags = from.has_block ? INLINE_BLOCK : 0;
  result.round = decision.round;
  result.block = from.block;
  result.next = from.next;
  result.exponent = from.exponent;
  result.what = from.what;
  count(to == To::all ? InlineCount::results : InlineCount::answers);
  const size_t bytes = from.has_block ? INLINE_BLOCK_BYTES : 0;
  return {to, head.job, result, {slot.sums[decision.version], bytes}};
}

SlotAggregator::Answer SlotAggregator::take(const uint8_t* data, size_t size) {
  if (size < INLINE_HEAD_BYTES) return refuse(InlineCount::too_short);
  inline_head head;
  std::memcpy(&head, data, sizeof head);
  const bool codes = head.flags & INLINE_CODES;
  const size_t expected = codes        ? INLINE_CODED_BYTES
                          : head.flags ? INLINE_FULL_BYTES
                                       : INLINE_HEAD_BYTES;
  if (size != expected)
    return refuse(size < expected ? InlineCount::too_short : InlineCount::too_long);
  if (head.job >= jobs_.size() || jobs_[head.job].workers == 0)
    return refuse(InlineCount::other_job);
  Job& job = jobs_[head.job];
  if (head.key != job.key) return refuse(InlineCount::forged);
  ++job.contributions;
  if (head.worker >= job.workers) return refuse(InlineCount::stranger);
  if (head.slot >= slots_per_job_ || (codes && !job.takes_codes))
    return refuse(InlineCount::impossible);

  Slot& slot = slots_[size_t(head.job) * slots_per_job_ + head.slot];
  slot_decision decision;
  slot_take(&slot.state, job.workers, &head, &decision);
  uint64_t* const sum = slot.sums[decision.version];
  const void* block = data + INLINE_HEAD_BYTES;
  int32_t integers[INLINE_ELEMENTS];
  if (codes && (decision.verdict == SLOT_STORE || decision.verdict == SLOT_ADD)) {
    integer_ops().from_codes(data + INLINE_HEAD_BYTES, INLINE_ELEMENTS, integers);
    block = integers;
  }
  switch (decision.verdict) {
    case SLOT_STORE: job.ops->store(sum, block, INLINE_ELEMENTS); break;
    case SLOT_ADD: job.ops->add(sum, block, INLINE_ELEMENTS); break;
    case SLOT_ANSWER: return result(head, slot, decision, To::sender);
    case SLOT_DUPLICATE: return refuse(InlineCount::duplicate);
    case SLOT_OLD: return refuse(InlineCount::old);
    case SLOT_EARLY: return refuse(InlineCount::early);
    case SLOT_IMPOSSIBLE: return refuse(InlineCount::impossible);
    default: break;
  }
  count(InlineCount::taken);
  if (!decision.complete) return {To::nobody, head.job, {}, {}};
  if (slot.state.results[decision.version].has_block) job.ops->finish(sum, sum, INLINE_ELEMENTS);
  return result(head, slot, decision, To::all);
}

}  // namespace omnihvd
