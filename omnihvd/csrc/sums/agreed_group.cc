#include "sums/agreed_group.h"

#include "base/error.h"

namespace omnihvd {

template <typename Work>
void AgreedGroup::or_fail_for_good(Work work) {
  process_.check();
  if (!failure_.empty()) throw Error(failure_);
  try {
    work();
  } catch (const std::exception& error) {
    failure_ = error.what();
    own_.reset();  // the other ranks need not wait for this one
    throw;
  }
}

const char* AgreedGroup::refusal(Exchange& exchange, uint64_t bytes, bool of_any_size) {
  if (!agreement_)
    or_fail_for_good([&] {
      agreement_ = agree(exchange);
      double& timeout_s = agreement_->settings.timeout_s;
      if (timeout_s <= 0) timeout_s = timeout_s_;
    });
  if (!agreement_->settings.enable) return "disabled";
  return !of_any_size && bytes < agreement_->settings.min_bytes ? "small" : nullptr;
}

Way AgreedGroup::allreduce(Exchange& exchange, Library& library, void* data, uint64_t count,
                           DType dtype) {
  Way way = Way::stream;
  or_fail_for_good([&] {
    if (!ways_) ways_.emplace(agreement_->settings);
    way = ways_->allreduce(data, data, count, dtype, library, [&](const void*, void* in_place) {
      return sum(exchange, in_place, count, dtype);
    });
  });
  return way;
}

Way AgreedGroup::allreduce(Exchange& exchange, void* data, uint64_t count, const Codec& codec) {
  Way way = Way::stream;
  or_fail_for_good([&] {
    ++coded_sums_;
    way = sum(exchange, data, count, DType::f32, codec).way;
  });
  return way;
}

Way AgreedGroup::allreduce(Exchange& exchange, CodedBuffer& tensors) {
  Way way = Way::stream;
  or_fail_for_good([&] {
    const bool each_by_itself = agreement_->settings.deterministic;
    tensors.sum(coded_sums_++, each_by_itself, [&](void* data, uint64_t count, const Codec& codec) {
      way = sum(exchange, data, count, DType::f32, codec).way;
    });
  });
  return way;
}

Way AgreedGroup::allreduce_int32(Exchange& exchange, void* data, uint64_t count) {
  Way way = Way::stream;
  or_fail_for_good([&] { way = sum(exchange, data, count, DType::i32).way; });
  return way;
}

Ways::SumMade AgreedGroup::sum(Exchange& exchange, void* data, uint64_t count, DType dtype,
                               const Codec& codec) {
  if (!own_) own_.emplace(exchange, agreement_->settings, agreement_->hosts);
  return own_->allreduce(data, data, count, dtype, codec);
}

}  // namespace omnihvd
