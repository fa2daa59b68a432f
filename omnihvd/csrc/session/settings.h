// All settings, each an environment variable OMNIHVD_<NAME>. The table in settings.cc is their one
// definition: `omnihvd check --settings`, Python, the README and what ranks tell each other follow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/way.h"
#include "protocol/arithmetic.h"
#include "transport/transport.h"

namespace omnihvd {

enum class Hierarchy { automatic, on, off };
using CompressionFirst = Hierarchy;

struct Settings {
  bool enable = true;              // false: every call goes to the original library
  uint64_t min_bytes = 262144;     // smaller tensors go to the original library
  uint32_t block_size = 256;       // elements
  uint32_t message_bytes = 57344;  // of fused blocks in one slot
  uint32_t slots = 8;              // per aggregator and stream
  uint32_t streams = 1;            // engine threads
  uint32_t scan_ahead = 2048;      // blocks inspected ahead
  uint32_t spin_us = 5;            // polling before an engine thread sleeps
  Way way = Way::automatic;        // in which sums are made
  Way gpu = Way::original;         // the same, of GPUs' sums
  ArithmeticKind arithmetic = ArithmeticKind::floats;  // of float32, as they are streamed
  uint64_t gpu_chunk_bytes = 8388608;                  // of a union, that are summed at a time
  uint64_t gpu_min_bytes = 1 << 20;                    // of them, smaller ones go to NCCL
  bool polite = true;          // who waits for a sum sleeps instead of polling
  bool deterministic = false;  // add in rank order
  Hierarchy hierarchy = Hierarchy::automatic;
  std::string levels = "auto";  // of aggregators: protocol/seats.h
  CompressionFirst compress_first =
      CompressionFirst::automatic;       // before ranks reduce inside a host
  std::string host_id;                   // tells hosts apart; empty: the host name
  std::string kernel_cache;              // folder of the compiled kernels; empty: ~/.cache/...
  std::vector<std::string> aggregators;  // host:port; empty: colocated
  std::string inline_at;                 // address:port of an aggregator in the data path; or empty
  TransportKind transport = TransportKind::ucx;
  std::string udp_interface;             // empty: any
  uint32_t udp_mtu = 0;                  // 0: as found
  bool encrypt = false;                  // messages between hosts
  std::string secret;                    // from OMNIHVD_SECRET or the file OMNIHVD_SECRET_FILE
  double timeout_s = 0;                  // 0: none
  std::optional<double> join_timeout_s;  // 0: none; absent: what suits the library
  double stall_warning_s = 60;
  uint32_t delay_budget_ms = 0;  // of a step's sums, for omnihvd/compressors; 0: none
  std::string trace;             // file of spans; empty: none
  std::string stats;             // file of steps; empty: none
  std::string metrics;           // [host:]port of the figures for Prometheus; empty: none
  bool watchable = true;         // `omnihvd top` may ask
  LogLevel log = LogLevel::notice;
};

// Throws Error naming the variable, its value and what is allowed. A variable OMNIHVD_* that is
// none of ours is an Error too: a misspelt setting must not be silent.
Settings settings_from_environment();

// Of the transports of a process with these settings.
TransportOptions transport_options(const Settings& settings);

// What tells this host from others: host_id, or the host's name.
std::string host_name(const Settings& settings);

// Whose value is used, where ranks differ.
enum class Agreed {
  own,
  rank0,
  rank0_silently,
  strictest,
  same,  // they must not
};

struct Setting {
  using Member =
      std::variant<std::monostate, bool Settings::*, uint32_t Settings::*, uint64_t Settings::*,
                   double Settings::*, std::optional<double> Settings::*, std::string Settings::*,
                   std::vector<std::string> Settings::*>;
  std::string name, allowed, help;
  Agreed agreed;
  Member member;                                             // none: a word
  std::function<void(Settings&, const std::string&)> parse;  // throws Error: not allowed
  std::function<std::string(const Settings&)> show;          // what parse() takes
  std::vector<std::string> words;                            // laxest first
  std::string default_value = show(Settings());
};
const std::vector<Setting>& all_settings();

// What a rank tells the others of its settings, but for its own.
std::string pack_agreed(const Settings& settings);

// Makes of *settings what those use that have packed theirs. `ranks`: how each is called. Returns a
// sentence for each setting in which some differ. Pure; throws Error where bytes are malformed, and
// where some differ that must not.
std::vector<std::string> agree_on_settings(const std::vector<std::string>& packed,
                                           const std::vector<std::string>& ranks,
                                           Settings* settings);

}  // namespace omnihvd
