#include "communicator/communicator.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <set>

#include "algorithms/huge_pages.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/plugin.h"
#include "communicator/coded_buffer.h"
#include "engine/stats.h"
#include "engine/while_waiting.h"
#include "intercept/polite_yield.h"

namespace omnihvd {
namespace {

std::string text_of(const Call& call) {
  return sum_text(call.count, call.dtype, call.codec, call.scatters());
}

// Whether another rank makes a small sum meanwhile.
constexpr std::chrono::milliseconds kLookEvery{500};

bool all_zero(const void* data, uint64_t bytes) {
  const auto* const at = static_cast<const char*>(data);
  return bytes == 0 || (at[0] == 0 && std::memcmp(at, at + 1, bytes - 1) == 0);
}

}  // namespace

void Communicator::give_up(const std::exception& why) {
  if (!failure_.empty()) return;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&why) != nullptr;
  failure_ = memory ? "this process has no more memory" : why.what();
  own_.reset();
  small_.reset();
  direct_.reset();
  lists_.reset();
}

template <typename Work>
void Communicator::or_fail_for_good(Work work) {
  check();
  try {
    work();
  } catch (const std::exception& error) {
    give_up(error);
    throw Error(failure_);
  }
}

template <typename Make>
void Communicator::counted(const Call& call, Make make) {
  const auto begun = std::chrono::steady_clock::now();
  const SumUnderWay under_way;
  Way way = Way::stream;
  or_fail_for_good([&] { way = make(); });
  count_way(way, call.bytes(), begun);
  if (call.scatters()) stats().reduce_scatters += 1;
}

Reason Communicator::take(const Call& call, Exchange& exchange, Library& library) {
  check();
  Reason reason = refusal(call.bytes(), true, call.scatters());
  if (reason == Reason::one_rank && call.may_be_coded &&
      CodedBuffer::begins(call.in, call.bytes())) {
    if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
    CodedBuffer(call.out, call.bytes()).mark_summed();
    return Reason::none;
  }
  if (reason != Reason::none) return reason;
  if (!met()) meet(exchange, &call);
  Call taken = call;
  reason = refusal(call.bytes(), bool(call.codec), call.scatters());
  if ((reason == Reason::none || reason == Reason::small) && library_ == Beside::gloo &&
      !call.scatters()) {
    reason = leaves_first(call.bytes()) ? Reason::small : Reason::none;
    taken.takes_small = left_first();
  }
  if (call.may_be_coded && (reason == Reason::none || reason == Reason::small))
    return sum_int32(taken, exchange, library, reason);
  if (reason == Reason::none) sum(taken, exchange, library);
  return reason;
}

// int32 costs nothing more in a job without codecs: ranks sum int32 as such until a tensor under a
// codec appears. The sum of the first tensor's header tells all ranks what it was, also those that
// contribute zeros because they have joined. Then they sum it again, with the codec.
Reason Communicator::sum_int32(const Call& call, Exchange& exchange, Library& library,
                               Reason reason) {
  if (codecs_used_) {
    if (sum_coded(call, exchange, library)) return Reason::none;
    if (reason == Reason::none) sum(call, exchange, library);
    return reason;
  }
  const auto* const in = static_cast<const char*>(call.in);
  const bool coded = CodedBuffer::begins(in, call.bytes());
  std::string kept;
  if (coded) or_fail_for_good([&] { kept.assign(in, call.bytes()); });
  if (reason == Reason::none) {
    sum(call, exchange, library);
  } else {
    leave_to(library, call);
  }
  codecs_used_ = CodedBuffer::begins_sum(call.out, call.bytes(), size_);
  if (codecs_used_) {
    Call again = call;
    again.in = call.out;
    if (coded)
      std::memcpy(call.out, kept.data(), kept.size());
    else
      std::memset(call.out, 0, call.bytes());
    sum_coded(again, exchange, library);
  } else if (coded) {
    or_fail_for_good([] {
      throw Error(
          "another rank has other numbers where this rank has a tensor under a codec: compress the "
          "same tensors on all ranks");
    });
  }
  return Reason::none;
}

void Communicator::meet(Exchange& exchange, const Call* first) {
  or_fail_for_good([&] {
    const Greeting greeting;
    if (first) met_in_ = text_of(*first);
    exchange.wait_as(greeting.settings());
    BytesWriter word;
    word.text(met_in_);
    word.u64(first && first->on_device);
    Agreement agreed =
        greeting.read(exchange.allgather(greeting.with(word.bytes())), exchange.rank());
    std::vector<std::string> sums;
    all_on_device_ = true;
    for (const std::string& theirs : agreed.words) {
      BytesReader in(theirs);
      sums.push_back(in.text());
      all_on_device_ &= in.u64() != 0;
    }
    // Otherwise a rank with a smaller buffer might make the library's call and wait there for ever.
    if (agreed.settings.enable) check_same(sums, agreed.hosts);
    settings_bound_ = agreed.settings.timeout_s > 0;
    if (!settings_bound_) agreed.settings.timeout_s = timeout_s_;
    exchange.wait_as(agreed.settings);
    can_scatter_ = can_scatter(agreed.settings, agreed.hosts);
    small_wanted_ = SmallSum::wanted(agreed.settings, agreed.hosts);
    if (library_ != Beside::mpi)
      most_direct_ = DirectSum::most_bytes(agreed.settings, agreed.hosts);
    agreed_ = std::move(agreed);
  });
}

void Communicator::set_timeout(double seconds) {
  timeout_s_ = seconds;
  if (!agreed_ || settings_bound_) return;
  agreed_->settings.timeout_s = seconds;
  if (own_) own_->set_timeout(seconds);
  if (small_) small_->set_timeout(seconds);
  if (direct_) direct_->set_timeout(seconds);
  if (lists_) lists_->set_timeout(seconds);
}

Reason Communicator::refusal(uint64_t bytes, bool any_size, bool scatters) const {
  if (bytes == 0) return Reason::empty;
  if (size_ < 2) return Reason::one_rank;
  if (!agreed_) return Reason::none;
  if (!agreed_->settings.enable) return Reason::disabled;
  if (all_on_device_) return Reason::device_memory;
  if (!any_size && bytes < least_bytes(scatters)) return Reason::small;
  return scatters && !can_scatter_ ? Reason::levels : Reason::none;
}

bool Communicator::leaves_first(uint64_t bytes, bool scatters) {
  if (!agreed_) return false;
  const Settings& s = agreed_->settings;
  if (s.min_bytes || small_wanted_ || s.deterministic || (scatters && !can_scatter_))
    return bytes < least_bytes(scatters);
  if (bytes >= kConnectsAtOnce) first_sums_ = kFirstSums + 1;
  // A setting that determines a sum's bits, or its place, is for all that are not small.
  const bool any =
      s.way == Way::automatic && s.inline_at.empty() && s.arithmetic == ArithmeticKind::floats;
  if (bytes >= (any ? kFirstBelow : kMinBytesBetweenHosts)) return false;
  first_sums_ += 1;
  first_bytes_ += bytes;
  return !left_first();
}

// Before the first sum.
void Communicator::begin(const Call& call, Exchange& exchange) {
  if (const std::string text = text_of(call); text != met_in_)
    check_same(exchange.allgather(text), agreed_->hosts);
  if (small_wanted_) small_ = SmallSum::create(exchange, agreed_->settings, agreed_->hosts[0]);
  for (const Op op : {Op::allreduce, Op::reduce_scatter})
    ways_.try_emplace(op, agreed_->settings, op, small_wanted_ ? kConnectHere : kConnectHosts);
}

// Before a sum. As long as the library makes the first ones between hosts, connections would cost
// more than they save. Ranks of one host need them only if they share no memory.
void Communicator::connect_directly(const Call& call, Exchange& exchange) {
  const Settings& s = agreed_->settings;
  if (direct_ || small_ || !is_direct(call)) return;
  if (!left_first() && !small_wanted_ && !s.min_bytes && !s.deterministic) return;
  direct_ = DirectSum::create(exchange, s, agreed_->hosts);
  if (!direct_) most_direct_ = 0;
}

// Another algorithm makes this sum.
void Communicator::pass(const Call& call) {
  if (small_) small_->pass(call);
  if (direct_) direct_->pass(call);
}

void Communicator::leave_to(Library& library, const Call& call) {
  count_pass(Reason::small, call.bytes());
  const Elsewhere elsewhere(this, "an allreduce", "the original library", call.bytes(),
                            Reason::small);
  library.run(call.in, call.out, call.count);
}

bool Communicator::sum_small(const Call& call) {
  const bool shared = small_ && small_->takes(call);
  if (!shared && !(direct_ && is_direct(call))) return false;
  // Once the library has made the first ones, none is too small for a direct sum.
  const bool any_size = !shared && !agreed_->settings.min_bytes;
  if (refusal(call.bytes(), any_size) != Reason::none) return false;
  counted(call, [&] {
    if (shared)
      small_->allreduce(call);
    else
      direct_->allreduce(call);
    return shared ? Way::shared : Way::stream;
  });
  return true;
}

void Communicator::sum(const Call& call, Exchange& exchange, Library& library) {
  or_fail_for_good([&] {
    if (ways_.empty()) begin(call, exchange);
    connect_directly(call, exchange);
  });
  if (sum_small(call)) return;
  // These need memory that the ranks share, or direct connections, and the reason must be final.
  const Settings& s = agreed_->settings;
  if (!small_ && !call.codec && !call.takes_small && call.bytes() < kMinBytesBetweenHosts &&
      !s.min_bytes && !s.deterministic)
    return or_fail_for_good([&] { leave_to(library, call); });
  if (call.in != call.out)
    ask_for_huge_pages(call.out, call.elements_of(exchange.rank()) * size_of(call.dtype));
  const auto look = [&] {
    if (const std::string why = direct_->look(); !why.empty() && own_) own_->fail(why);
  };
  const WhileWaiting looks(direct_ ? std::function<void()>(look) : nullptr, kLookEvery);
  counted(call, [&] {
    pass(call);
    if (call.codec) return coded(call, exchange, library);
    if (call.takes_small) ways_.at(call.op).connect_at_once();
    return ways_.at(call.op).sum(call, library, [&](const void* in, void* out, const Codec& codec) {
      Call once = call;
      once.codec = codec;
      once.in = in;
      once.out = out;
      return own(once, exchange, library);
    });
  });
}

bool Communicator::takes_lists(DType dtype, uint64_t length) const {
  const Settings& s = agreed_->settings;
  const std::set<std::string> apart(agreed_->hosts.begin(), agreed_->hosts.end());
  const bool streams =
      s.way == Way::stream || (s.way == Way::automatic && apart.size() == agreed_->hosts.size());
  return s.enable && streams && s.inline_at.empty() && length > 0 &&
         length <= ListCall::kMostLength && !Arithmetic::of(s.arithmetic, dtype, uint32_t(size_));
}

const ListedSums& Communicator::sum_lists(const ListCall& call, Exchange& exchange) {
  counted({nullptr, call.out, call.blocks * call.length, call.dtype}, [&] {
    if (!lists_) lists_ = process_engine(exchange)->join(exchange, agreed_->settings);
    omnihvd::sum_lists(*lists_, call, &listed_);
    return Way::stream;
  });
  return listed_;
}

void Communicator::interrupt(int rank, const std::string& why) {
  const std::string text = rank_name(size_t(rank), agreed_->hosts[size_t(rank)]) + ": " + why;
  if (small_) small_->abort(text);
  if (direct_) direct_->abort(text);
  if (own_) own_->fail(text);
  if (lists_) lists_->fail(text);
}

// Sums int32 buffers of any size that may carry codec data. Returns false if none does.
bool Communicator::sum_coded(const Call& call, Exchange& exchange, Library& library) {
  std::optional<CodedBuffer> mine;
  std::vector<CodedRun> runs;
  or_fail_for_good([&] {
    pass(call);
    CodedWord word{call.count};
    try {
      if (CodedBuffer::begins(call.in, call.bytes())) {
        if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
        mine.emplace(call.out, call.bytes());
        word.runs = mine->runs(coded_sums_, agreed_->settings.deterministic);
      } else {
        word.zeros = all_zero(call.in, call.bytes());
      }
    } catch (const Error& error) {  // the others must learn it, or they would wait for this rank
      word.problem = error.what();
    }
    runs = agree_on_runs(exchange, word, agreed_->hosts);
  });
  if (runs.empty()) return false;
  counted(call, [&] {
    ++coded_sums_;
    if (mine)
      mine->clear_headers();
    else
      std::memset(call.out, 0, call.bytes());
    Way way = Way::stream;
    auto* at = static_cast<float*>(call.out);
    for (const CodedRun& run : runs) {
      way = coded({at, at, run.count, DType::f32, run.codec}, exchange, library);
      at += run.count;
    }
    if (mine) mine->mark_summed();
    return way;
  });
  return true;
}

// Throws Error if OMNIHVD_ARITHMETIC cannot be obeyed. If it does not apply to a call, rank 0 logs
// so once.
void Communicator::check_arithmetic(const Call& call, int rank) const {
  if (agreed_->settings.arithmetic == ArithmeticKind::floats) return;
  const std::string setting =
      std::string("OMNIHVD_ARITHMETIC=") + name_of(agreed_->settings.arithmetic);
  if (!Arithmetic{agreed_->settings.arithmetic, 0}.admits(call.codec))
    throw Error(setting + " sums float32 as they are, and not what the codec " +
                name_of(call.codec) + " makes of them: leave out the setting, or the codec");
  if (Arithmetic::takes(call.dtype) || !info_of(call.dtype).is_float || rank != 0) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    log(LogLevel::warning, "sums of ", name_of(call.dtype), " are made of floats: ", setting,
        " is of float32");
  });
}

// Absent if the algorithm leaves the call to the library.
std::optional<SumMade> Communicator::own(const Call& call, Exchange& exchange, Library& library) {
  check_arithmetic(call, exchange.rank());
  if (!own_) own_ = make_algorithm(exchange, agreed_->settings, agreed_->hosts);
  if (own_->can(call) != Reason::none) return std::nullopt;
  return own_->run(call, library);
}

// No library knows codecs.
Way Communicator::coded(const Call& call, Exchange& exchange, Library& library) {
  if (const auto made = own(call, exchange, library)) return made->way;
  throw Error("OMNIHVD_WAY=" + plugin_way() + " sums no tensors under a codec: leave out one");
}

Communicator::Elsewhere::Elsewhere(const Communicator* communicator, const char* call,
                                   const char* library, uint64_t bytes, Reason reason) {
  if (communicator && communicator->own_) group_ = communicator->own_->group();
  if (group_)
    group_->set_elsewhere(std::string("which is in ") + call + " of " + std::to_string(bytes) +
                          " bytes, left to " + library + " (" + name_of(reason) + ")");
}

}  // namespace omnihvd
