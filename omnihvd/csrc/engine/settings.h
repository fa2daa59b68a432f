// All settings, each an environment variable OMNIHVD_<NAME>. The table in settings.cc is their one
// definition: `omnihvd check --settings`, Python, the README and the exchange between ranks follow
// it.
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

// Without OMNIHVD_MIN_BYTES: inside a host, omnihvd makes all allreduces; between hosts, those of
// so many bytes or more.
constexpr uint64_t kMinBytesBetweenHosts = 256 << 10;
// Gloo makes a group's first ones, of less than kFirstBelow: so many sums, or so many bytes. Later
// ones are faster by streaming, but the ranks need about as long to connect.
constexpr uint64_t kFirstBelow = 2'000'000, kFirstSums = 64, kFirstBytes = 32'000'000;

struct Settings {
  bool enable = true;                 // false: every call goes to the original library
  std::optional<uint64_t> min_bytes;  // smaller tensors go to the original library; absent: above
  uint32_t block_size = 256;          // elements
  uint32_t message_bytes = 57344;     // of fused blocks per slot
  uint32_t slots = 8;                 // per aggregator and progress thread
  uint32_t streams = 1;               // progress threads
  uint32_t scan_ahead = 2048;         // blocks inspected ahead
  uint32_t spin_us = 5;               // polling before a progress thread sleeps
  std::string plugin;                 // path of a library; empty: none
  Way way = Way::automatic;           // the algorithm of sums
  Way gpu = Way::original;            // the same for GPU tensors
  ArithmeticKind arithmetic = ArithmeticKind::floats;  // of float32 sums through aggregators
  uint64_t gpu_chunk_bytes = 64 << 20;                 // of a union: how much is summed at a time
  uint64_t gpu_min_bytes = 1 << 20;                    // smaller GPU tensors go to NCCL
  bool polite = true;          // threads that wait for a sum sleep instead of polling
  bool deterministic = false;  // add in rank order
  Hierarchy hierarchy = Hierarchy::automatic;
  std::string levels = "auto";  // of aggregators: protocol/seats.h
  CompressionFirst compress_first =
      CompressionFirst::automatic;       // before ranks reduce inside a host
  std::string host_id;                   // identifies the host; empty: the host name
  std::string kernel_cache;              // folder of the compiled kernels; empty: ~/.cache/...
  std::vector<std::string> aggregators;  // host:port; empty: colocated
  std::string inline_at;                 // address:port of an in-network aggregator; or empty
  std::string transport = "ucx";         // transport/registry.h
  std::string udp_interface;             // empty: any
  uint32_t udp_mtu = 0;                  // 0: detected
  bool encrypt = false;                  // messages between hosts
  std::string secret;                    // from OMNIHVD_SECRET or the file OMNIHVD_SECRET_FILE
  double timeout_s = 0;                  // 0: none
  std::optional<double> join_timeout_s;  // 0: none; absent: chosen to suit the library
  double stall_warning_s = 60;
  uint32_t delay_budget_ms = 0;  // for a step's sums, used by omnihvd/compression; 0: none
  std::string trace;             // file of spans; empty: none
  std::string stats;             // file of steps; empty: none
  std::string metrics;           // [host:]port where Prometheus reads metrics; empty: none
  bool watchable = true;         // `omnihvd top` may read it
  LogLevel log = LogLevel::notice;
};

// Throws Error naming the variable, its value and the allowed values. An unknown OMNIHVD_* variable
// is an Error, too: a misspelt setting must not be silent.
Settings settings_from_environment();

// Options for the transports of a process with these settings.
TransportOptions transport_options(const Settings& settings);

// Identifies this host: host_id, or the host's name.
std::string host_name(const Settings& settings);

// Which rank's value holds if ranks differ.
enum class Agreed {
  own,
  rank0,
  rank0_silently,
  strictest,
  same,  // they must not differ
};

struct Setting {
  using Member = std::variant<std::monostate, bool Settings::*, uint32_t Settings::*,
                              uint64_t Settings::*, std::optional<uint64_t> Settings::*,
                              double Settings::*, std::optional<double> Settings::*,
                              std::string Settings::*, std::vector<std::string> Settings::*>;
  std::string name, allowed, help;
  Agreed agreed;
  Member member;                                             // none: an enumeration
  std::function<void(Settings&, const std::string&)> parse;  // throws Error if not allowed
  std::function<std::string(const Settings&)> show;          // in the form that parse() takes
  std::vector<std::string> words;                            // laxest first
  std::string default_value = show(Settings());
};
const std::vector<Setting>& all_settings();

// The settings that a rank tells the others about, without those that are its own.
std::string pack_agreed(const Settings& settings);

// Sets *settings to what ranks use that have packed theirs. `ranks`: how messages name each.
// Returns a sentence for each setting in which some differ. Pure; throws Error if bytes are
// malformed, or if ranks differ in a setting that must be the same.
std::vector<std::string> agree_on_settings(const std::vector<std::string>& packed,
                                           const std::vector<std::string>& ranks,
                                           Settings* settings);

}  // namespace omnihvd
