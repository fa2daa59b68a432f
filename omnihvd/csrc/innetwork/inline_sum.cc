#include "innetwork/inline_sum.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "base/awake_clock.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/time_limits.h"
#include "engine/until_done.h"
#include "engine/while_waiting.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

constexpr uint64_t kLookEvery = 10'000;  // microseconds between looks at the other ranks

std::atomic<bool> has_been_used{false};  // by this process

InlineClient::Options options_of(Exchange& exchange, const Settings& agreed,
                                 const std::vector<std::string>& hosts) {
  const size_t colon = agreed.inline_at.rfind(':');
  InlineClient::Options options;
  options.secret = agreed.secret;
  options.host = agreed.inline_at.substr(0, colon);
  options.port = uint16_t(std::stoul(agreed.inline_at.substr(colon + 1)));
  options.rank = uint32_t(exchange.rank());
  options.ranks = uint32_t(exchange.size());
  options.name = rank_name(options.rank, hosts[options.rank]);
  options.patience_s = kAggregator.seconds;
  if (agreed.timeout_s > 0) options.patience_s = std::min(agreed.timeout_s, options.patience_s);
  return options;
}

// Rank 0 joins first: it draws the job's number and learns whether the aggregator takes the job.
// Returns null if not; *obstacle then says why. Throws Error, on all ranks.
std::unique_ptr<InlineClient> join(Exchange& exchange, InlineClient::Options options,
                                   std::string* obstacle) {
  std::unique_ptr<InlineClient> client;
  std::string problem;
  const auto make = [&] {
    try {
      client = std::make_unique<InlineClient>(options, InlineClient::Meanwhile{});
      has_been_used = true;
    } catch (const InlineRefused& why) {
      *obstacle = why.what();
    } catch (const std::exception& why) {
      // An elastic job goes on without an aggregator that has ended, as with dedicated aggregators.
      (options.rank == 0 && has_been_used ? *obstacle : problem) = why.what();
    }
  };
  if (options.rank == 0) {
    const std::string number = random_bytes(sizeof options.session);
    std::memcpy(&options.session, number.data(), number.size());
    make();
  }
  BytesWriter word;
  word.u64(options.session);
  word.text(*obstacle);
  word.text(problem);
  const std::string of_rank_0 = exchange.allgather(word.bytes())[0];
  BytesReader in(of_rank_0);
  options.session = in.u64();
  *obstacle = in.text();
  problem = in.text();
  if (!problem.empty()) throw Error(problem);
  if (!obstacle->empty()) return nullptr;

  if (options.rank != 0) make();
  for (const std::string& theirs : exchange.allgather(problem + *obstacle))
    if (!theirs.empty()) throw Error(theirs);
  return client;
}

}  // namespace

std::unique_ptr<Algorithm> InlineSum::create(Exchange& exchange, const Settings& agreed,
                                             const std::vector<std::string>& hosts) {
  std::string obstacle;
  std::unique_ptr<InlineClient> client;
  if (exchange.size() > INLINE_WORKERS)
    obstacle =
        "an in-network aggregator has " + std::to_string(INLINE_WORKERS) + " workers a job at most";
  else
    client = join(exchange, options_of(exchange, agreed, hosts), &obstacle);
  if (!client) {
    if (exchange.rank() == 0)
      log(LogLevel::warning, "the ", hosts.size(), " ranks of a communicator stream, in spite of ",
          "OMNIHVD_INLINE: ", obstacle);
    return nullptr;
  }
  Settings beside = agreed;
  beside.block_size = INLINE_ELEMENTS;
  beside.arithmetic = ArithmeticKind::floats;
  auto group = process_engine(exchange)->join(exchange, beside);
  return std::unique_ptr<Algorithm>(new InlineSum(std::move(client), std::move(group), agreed));
}

struct InlineSum::Sum {
  void* data;
  uint64_t count;
  DType dtype;
  Codec codec;
  AwakeClock clock{};  // a rank that was stopped has not been late
  uint64_t begun = clock.now(), moved = begun;
  uint64_t received = 0;                 // results, when it moved
  std::atomic<bool> all_begun{false};    // the ranks
  std::optional<std::string> failure{};  // of this rank's part
};

SumMade InlineSum::run(const Call& call, Library& library) {
  // Codecs stream, unless OMNIHVD_ARITHMETIC asks for what an aggregator adds.
  if (!inline_takes(call.dtype) || call.scatters() ||
      !Arithmetic{settings_.arithmetic, 0}.admits(call.codec))
    return Streamed::run(call, library);
  if (call.in != call.out) {
    std::memcpy(call.out, call.in, call.bytes());
    stats().bytes_copied += call.bytes();
  }
  Sum one{call.out, call.count, call.dtype, call.codec};
  until_done([&](const Group::Done& done) {
    const auto begun = [&one, done](const std::string* failure, uint64_t blocks) {
      one.all_begun = true;
      done(failure, blocks);
    };
    // Without blocks: the engine names a rank that is late, has ended or sums something else.
    group()->reduce(group()->reserve(), call.count, call.dtype, NoBlocks::make, begun, call.codec);
    sum(one);
  });
  if (one.failure) {
    stats().failures += 1;
    throw Error(*one.failure);
  }
  return {Way::inlined, client_->worker().united_blocks()};
}

void InlineSum::sum(Sum& sum) {
  const WhileWaiting* const waiting = WhileWaiting::here();
  const uint64_t every =
      waiting ? std::min(kLookEvery, uint64_t(waiting->every().count()) * 1000) : kLookEvery;
  const bool dense = settings_.arithmetic == ArithmeticKind::switchml;
  sum.received = client_->worker().counts().received;
  try {
    client_->sum(sum.data, sum.count, sum.dtype, dense, {[&] { look_after(sum); }, every},
                 sum.codec);
  } catch (const std::exception& why) {
    sum.failure = why.what();
    group()->fail(*sum.failure);
  }
  count(sum);
}

void InlineSum::look_after(Sum& sum) const {
  const uint64_t now = sum.clock.now();
  const auto seconds_since = [now](uint64_t time) { return double(now - time) / 1e6; };
  if (WhileWaiting* const waiting = WhileWaiting::here()) waiting->work();
  if (const std::string why = group()->failure(); !why.empty()) throw Error(why);
  if (const uint64_t received = client_->worker().counts().received; received != sum.received) {
    sum.received = received;
    sum.moved = now;
  }
  const double limit = timeout_s_, warning = settings_.stall_warning_s;
  const bool late = limit > 0 && seconds_since(sum.begun) > limit;
  if (!sum.all_begun || (!late && (warning <= 0 || seconds_since(sum.moved) < warning))) return;
  std::ostringstream what;
  what << "an allreduce of " << sum_text(sum.count, sum.dtype, sum.codec);
  if (late)
    what << " did not end within " << limit << " s (OMNIHVD_TIMEOUT)";
  else
    what << " has made no progress for " << warning << " s";
  what << "; all ranks have begun it: one of them has stopped, or the results of the aggregator at "
       << settings_.inline_at << " do not get through: let UDP in here";
  if (late) throw Error(what.str());
  sum.moved = now;
  log(LogLevel::warning, what.str());
}

// The engine has already counted the sum and its blocks.
void InlineSum::count(const Sum& sum) {
  const SlotWorker& worker = client_->worker();
  const SlotCounts now = worker.counts(), before = std::exchange(counted_, now);
  const uint64_t blocks = (sum.count + INLINE_ELEMENTS - 1) / INLINE_ELEMENTS;
  Stats& s = stats();
  // Blocks with NaN or infinity count in addition.
  s.nonzero_blocks += std::min(worker.own_blocks(), blocks);
  s.result_blocks += std::min(worker.united_blocks(), blocks);
  s.bytes_copied += (worker.own_blocks() + worker.united_blocks()) * INLINE_BLOCK_BYTES;
  if (sum.codec) {
    s.codecs.blocks += worker.own_blocks();
    s.codecs.bytes += worker.own_blocks() * INLINE_CODE_BYTES;
    s.codecs.plain_bytes += worker.own_blocks() * INLINE_BLOCK_BYTES;
  }
  s.bytes_sent += now.bytes_sent - before.bytes_sent;
  s.bytes_received += now.bytes_received - before.bytes_received;
  s.messages_sent += now.sent - before.sent;
  PacketCounts& datagrams = packet_counts();
  datagrams.sent += now.sent - before.sent;
  datagrams.again += now.again - before.again;
  datagrams.received += now.received - before.received;
  datagrams.refused += now.refused - before.refused;
}

}  // namespace omnihvd
