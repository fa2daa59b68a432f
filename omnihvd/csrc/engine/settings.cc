#include "engine/settings.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/plugin.h"
#include "base/time_limits.h"
#include "engine/auto_streams.h"
#include "engine/setting_values.h"
#include "transport/registry.h"

extern char** environ;

namespace omnihvd {
namespace {

// The words that settings use for enumerations. A value and its word stand side by side, so that a
// new value does not shift any other word.
template <typename T>
using Names = std::vector<std::pair<T, std::string>>;

const Names<Way> kWayWords = {{Way::automatic, "auto"},    {Way::stream, "stream"},
                              {Way::shared, "shared"},     {Way::unite, "union"},
                              {Way::original, "original"}, {Way::coded, "coded"}};
Names<Way> way_words() {
  Names<Way> words = kWayWords;
  if (!plugin_way().empty()) words.emplace_back(Way::plugin, plugin_way());
  return words;
}
const Names<Way> kGpuWayWords = {
    {Way::automatic, "auto"}, {Way::unite, "union"}, {Way::original, "original"}};
const Names<ArithmeticKind> kArithmeticWords = {{ArithmeticKind::floats, "float"},
                                                {ArithmeticKind::integers, "integer"},
                                                {ArithmeticKind::switchml, "switchml"},
                                                {ArithmeticKind::fpisa, "fpisa"},
                                                {ArithmeticKind::fpisa_a, "fpisa-a"}};
const Names<Hierarchy> kHierarchyWords = {
    {Hierarchy::automatic, "auto"}, {Hierarchy::on, "on"}, {Hierarchy::off, "off"}};
const Names<CompressionFirst> kCompressFirstWords = {{CompressionFirst::automatic, "auto"},
                                                     {CompressionFirst::on, "1"},
                                                     {CompressionFirst::off, "0"}};
Names<std::string> transport_words() {
  Names<std::string> words;
  for (const std::string& name : transport_names()) words.emplace_back(name, name);
  return words;
}
// OMNIHVD_LOG=warning shows notices, too; there is no word for warnings alone.
const Names<LogLevel> kLogWords = {{LogLevel::debug, "debug"},
                                   {LogLevel::info, "info"},
                                   {LogLevel::notice, "warning"},
                                   {LogLevel::error, "error"},
                                   {LogLevel::off, "off"}};

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream out;
  out.precision(15);
  out << value;
  return out.str();
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "";
}
std::string joined(const std::vector<std::string>& items, const char* comma, const char* last) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i)
    text += (i == 0 ? "" : i + 1 < items.size() ? comma : last) + items[i];
  return text;
}
std::string text_of(const std::vector<std::string>& list) { return joined(list, ",", ","); }

std::string limit(uint64_t value) {
  int power = 0;
  while (value >> (power + 1)) ++power;
  return power > 16 && value == 1ull << power ? "2^" + std::to_string(power) : text_of(value);
}

// Each makes a row of the table. `convert` throws anything if a value is not allowed.
template <typename T, typename Convert>
Setting any(const char* name, T Settings::* member, Agreed agreed, const std::string& allowed,
            const std::string& help, Convert convert) {
  return {name,
          allowed,
          help,
          agreed,
          member,
          [=](Settings& s, const std::string& value) {
            constexpr bool may_be_absent = std::is_assignable_v<T&, std::nullopt_t>;
            s.*member = may_be_absent && value.empty() ? T() : T(convert(value));
          },
          [=](const Settings& s) { return text_of(s.*member); },
          {}};
}

template <typename T>
Setting number(const char* name, T Settings::* member, uint64_t least, uint64_t most, Agreed agreed,
               const char* help) {
  return any(name, member, agreed, limit(least) + " .. " + limit(most), help,
             [=](const std::string& value) { return integer(value, least, most); });
}

template <typename T>
Setting time(const char* name, T Settings::* member, Agreed agreed, const std::string& help) {
  return any(name, member, agreed, "seconds; 0: none", help, seconds);
}

Setting flag(const char* name, bool Settings::* member, Agreed agreed, const char* help) {
  Setting made = any(name, member, agreed, "0 or 1", help, boolean);
  made.words = {"0", "1"};
  return made;
}

// One choice of an enumeration, by name.
template <typename T>
Setting word(const char* name, T Settings::* member, const Names<T>& names, Agreed agreed,
             const char* help) {
  std::vector<std::string> words;
  for (const auto& one : names) words.emplace_back(one.second);
  return {name,
          joined(words, ", ", " or "),
          help,
          agreed,
          {},
          [=](Settings& s, const std::string& value) {
            const auto found = std::find(words.begin(), words.end(), lower(value));
            if (found == words.end()) refuse();
            s.*member = names[size_t(found - words.begin())].first;
          },
          [=](const Settings& s) {
            const auto found = std::find_if(names.begin(), names.end(), [&](const auto& one) {
              return one.first == s.*member;
            });
            return found->second;
          },
          words};
}

Setting streams() {
  Setting made =
      any("OMNIHVD_STREAMS", &Settings::streams, Agreed::rank0_silently, "auto, 1 .. 64",
          "progress threads of a process; auto: as many as fill the host's fastest link, "
          "if each can have two cores",
          [](const std::string& value) {
            return lower(value) == "auto" ? automatic_streams() : integer(value, 1, 64);
          });
  made.default_value = "auto";
  return made;
}

// The one definition of all settings.
std::vector<Setting> table() {
  using S = Settings;
  constexpr Agreed own = Agreed::own, rank0 = Agreed::rank0, strictest = Agreed::strictest;
  const auto same = [](const std::string& value) { return value; };
  return {
      flag("OMNIHVD_ENABLE", &S::enable, rank0, "0: every call goes to the original library"),
      number(
          "OMNIHVD_MIN_BYTES", &S::min_bytes, 0, 1ull << 60, rank0,
          "smaller tensors go to the original library. none: inside a host omnihvd makes all "
          "allreduces; between hosts MPI makes those under 262144 bytes, and Gloo a group's first "
          "sums under 2 MB: 64, or 32 MB of them"),
      number("OMNIHVD_BLOCK_SIZE", &S::block_size, 8, 65536, rank0, "elements of a block"),
      number("OMNIHVD_MESSAGE_BYTES", &S::message_bytes, 64, 1u << 26, rank0,
             "bytes of blocks in a message; with headers, 63 KiB or less are cheapest"),
      number("OMNIHVD_SLOTS", &S::slots, 1, 65536, rank0,
             "messages that a worker has under way to an aggregator; more for longer round trips"),
      streams(),
      number("OMNIHVD_SCAN_AHEAD", &S::scan_ahead, 1, 1u << 30, rank0,
             "blocks that a slot inspects ahead of what it sends"),
      number(
          "OMNIHVD_SPIN_US", &S::spin_us, 0, 1000000, own,
          "microseconds for which a progress thread polls before it sleeps, while that finds work"),
      any("OMNIHVD_PLUGIN", &S::plugin, Agreed::same, "path",
          "library that adds an algorithm, which OMNIHVD_WAY then names (HACKING.md)", same),
      word("OMNIHVD_WAY", &S::way, way_words(), rank0,
           "algorithm of sums. stream: through aggregators; shared: over the memory of one host, "
           "else stream; union, original: by the original library, on the union of the non-zero "
           "blocks or on whole tensors; coded: stream with packed exponents; auto: the fastest"),
      word(
          "OMNIHVD_GPU", &S::gpu, kGpuWayWords, rank0,
          "what NCCL sums on GPUs: the union of the non-zero blocks, or whole tensors; auto: as is "
          "estimated to be the fastest; union: for tests. Neither has run on a GPU"),
      word("OMNIHVD_ARITHMETIC", &S::arithmetic, kArithmeticWords, Agreed::same,
           "how aggregators sum float32 on CPUs. float: as floats; integer: as block floating "
           "point; switchml: the same, and zero blocks travel, too; fpisa: in registers of "
           "integers; fpisa-a: the same, approximately, as today's switches can "
           "(docs/arithmetic.md)"),
      number("OMNIHVD_GPU_CHUNK_BYTES", &S::gpu_chunk_bytes, 65536, 1ull << 30, rank0,
             "bytes of a union that NCCL sums at a time"),
      number("OMNIHVD_GPU_MIN_BYTES", &S::gpu_min_bytes, 0, 1ull << 60, rank0,
             "on GPUs, smaller tensors go to NCCL"),
      flag(
          "OMNIHVD_POLITE", &S::polite, own,
          "1: threads of Horovod and Open MPI sleep while they wait for a sum, and Horovod's cycle "
          "ends when the training begins to wait"),
      flag("OMNIHVD_DETERMINISTIC", &S::deterministic, rank0,
           "1: add in rank order, so that runs reproduce bit for bit"),
      word("OMNIHVD_HIERARCHY", &S::hierarchy, kHierarchyWords, rank0,
           "reduce among the ranks of a host before streaming between hosts; auto: when there are "
           "several hosts with the same number of ranks, but on GPUs only if on"),
      any("OMNIHVD_LEVELS", &S::levels, rank0, "auto, or numbers such as 16x16",
          "a tree of aggregators: the fan-out of each level, from below; auto: the fewest levels "
          "with at most 64 peers a rank (docs/scale.md)",
          levels),
      word("OMNIHVD_COMPRESS_FIRST", &S::compress_first, kCompressFirstWords, rank0,
           "whether each rank compresses, by codecs and compressors, before the ranks of a host "
           "sum; 0: the host's sum is compressed, once. auto: 1"),
      any("OMNIHVD_HOST_ID", &S::host_id, own, "any text",
          "name of this host, where host names do not differ", same),
      any("OMNIHVD_KERNEL_CACHE", &S::kernel_cache, own, "path",
          "folder of the kernels compiled for this machine's GPUs; none: ~/.cache/omnihvd/kernels",
          same),
      any("OMNIHVD_AGGREGATORS", &S::aggregators, rank0, "host:port,...",
          "dedicated aggregators (`omnihvd aggregator`); none: every rank aggregates a share",
          addresses),
      any("OMNIHVD_INLINE", &S::inline_at, Agreed::same, "IPv4 address:port",
          "aggregator in the data path (`omnihvd aggregator --udp`, `--xdp` or `--af-xdp`), "
          "through which sums of int32, float32 and half precision go instead of streams, floats "
          "as integers of a common scale (docs/in-network.md)",
          ipv4_address),
      word("OMNIHVD_TRANSPORT", &S::transport, transport_words(), Agreed::same,
           "how messages travel: by UCX, over TCP, RDMA and shared memory; or as UDP datagrams, "
           "repeated where the network loses them (docs/in-network.md)"),
      any("OMNIHVD_UDP_INTERFACE", &S::udp_interface, own, "name of an interface",
          "network interface of the datagrams; none: any that leads to the peer", same),
      number("OMNIHVD_UDP_MTU", &S::udp_mtu, 0, 65535, own,
             "bytes of a datagram with its IP header, at least 576; 0: as the interfaces and the "
             "route have it"),
      any("OMNIHVD_SECRET", &S::secret, own, "16 characters or more",
          "shared by the workers and dedicated aggregators of a job", secret),
      any("OMNIHVD_SECRET_FILE", &S::secret, own, "path", "file that holds the secret",
          secret_of_file),
      flag(
          "OMNIHVD_ENCRYPT", &S::encrypt, strictest,
          "1: messages between hosts are encrypted and authenticated; needs a secret on all ranks"),
      time("OMNIHVD_TIMEOUT", &S::timeout_s, rank0,
           "an allreduce that takes longer fails on all ranks"),
      time("OMNIHVD_JOIN_TIMEOUT", &S::join_timeout_s, own,
           "how long ranks wait for each other at bootstrap; none: " + kJoinRoll.text() +
               " with Horovod on MPI, " + kJoinProgram.text() + " in other MPI programs, " +
               kJoin.text() + " otherwise (docs/failure.md)"),
      time("OMNIHVD_STALL_WARNING", &S::stall_warning_s, rank0,
           "an allreduce that waits this long for a rank is reported, with the rank"),
      number("OMNIHVD_DELAY_BUDGET_MS", &S::delay_budget_ms, 0, 1000000, rank0,
             "milliseconds that the sums of a step are to take: Horovod's optimizers send as many "
             "blocks of their gradients as fit (docs/compression.md); 0: all"),
      any("OMNIHVD_TRACE", &S::trace, own, "path",
          "file of the engine's spans, for Perfetto (docs/observing.md); of rank N: with .rank-N "
          "before its ending",
          same),
      any("OMNIHVD_STATS", &S::stats, own, "path",
          "file of JSON lines, one a step, with its sums; of rank N: as above", same),
      any("OMNIHVD_METRICS", &S::metrics, own, "port or host:port",
          "address of the figures for Prometheus; of rank N of a host: N ports on", metrics),
      flag("OMNIHVD_WATCHABLE", &S::watchable, own,
           "1: `omnihvd top` of the same user may ask for figures, over a local socket"),
      word("OMNIHVD_LOG", &S::log, kLogWords, own, "what is logged to stderr"),
  };
}

// The fewest letters to change, remove or insert to turn a into b.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (const char letter : a) {
    size_t before = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j)
      before = std::exchange(row[j],
                             std::min({row[j] + 1, row[j - 1] + 1, before + (letter != b[j - 1])}));
  }
  return row.back();
}

std::string meant(const std::string& name) {
  const std::vector<Setting>& all = all_settings();
  const auto close = [&](const Setting& s) { return edit_distance(name, s.name); };
  const Setting& best =
      *std::min_element(all.begin(), all.end(),
                        [&](const Setting& a, const Setting& b) { return close(a) < close(b); });
  return close(best) <= 3 ? "did you mean " + best.name + "? " : "";
}

// `setting` requires sums through aggregators.
void sum_through_aggregators(const std::string& setting, Settings* settings) {
  if (settings->way == Way::automatic) settings->way = Way::stream;
  if (settings->way != Way::stream)
    throw Error(setting + " requires OMNIHVD_WAY=stream (now: " + name_of(settings->way) +
                "): unset one of them");
}

// Throws Error if settings contradict each other.
void reconcile(Settings* settings) {
  const std::string arithmetic = std::string("OMNIHVD_ARITHMETIC=") + name_of(settings->arithmetic);
  const bool in_network = !settings->inline_at.empty();
  if (settings->secret.empty() && (in_network || !settings->aggregators.empty()))
    throw Error(std::string(in_network ? "OMNIHVD_INLINE" : "OMNIHVD_AGGREGATORS") +
                " needs OMNIHVD_SECRET or OMNIHVD_SECRET_FILE, the same as the aggregators'");
  if (settings->arithmetic != ArithmeticKind::floats) sum_through_aggregators(arithmetic, settings);
  if (!in_network) return;
  sum_through_aggregators("OMNIHVD_INLINE", settings);
  if (Arithmetic{settings->arithmetic}.registers())
    throw Error("OMNIHVD_INLINE sums integers: leave out " + arithmetic);
  if (settings->hierarchy == Hierarchy::on)
    throw Error(
        "with OMNIHVD_INLINE each rank is a worker of the aggregator: leave out "
        "OMNIHVD_HIERARCHY=on");
}

void load_named_plugin() {
  const char* const path = std::getenv("OMNIHVD_PLUGIN");
  if (path && *path) load_plugin(path);
}

}  // namespace

const std::vector<Setting>& all_settings() {
  static const std::vector<Setting> all = [] {
    try {
      load_named_plugin();    // it adds a word
    } catch (const Error&) {  // settings_from_environment() reports it
    }
    return table();
  }();
  return all;
}

Settings settings_from_environment() {
  load_named_plugin();
  Settings settings;
  settings.streams = automatic_streams();
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.rfind("OMNIHVD_", 0) != 0 || equals == std::string::npos) continue;
    // setup.py reads these, and they may stay exported.
    if (name == "OMNIHVD_UCX_HOME" || name == "OMNIHVD_TARGETS" || name == "OMNIHVD_PROJECT_URL")
      continue;
    const std::string value = text.substr(equals + 1);
    const std::vector<Setting>& all = all_settings();
    const auto setting =
        std::find_if(all.begin(), all.end(), [&](const Setting& s) { return s.name == name; });
    if (setting == all.end())
      throw Error("unknown setting " + name + ": " + meant(name) +
                  "see `omnihvd check --settings` for all settings");
    if (value.empty()) continue;
    try {
      setting->parse(settings, value);
    } catch (const std::exception& why) {
      // Never show a secret.
      const bool show = name.find("SECRET") == std::string::npos;
      throw Error(name + (show ? "=" + value : "") + ": " + why.what() +
                  "; allowed: " + setting->allowed);
    }
  }
  reconcile(&settings);
  return settings;
}

TransportOptions transport_options(const Settings& settings) {
  return {settings.secret, settings.udp_interface, settings.udp_mtu};
}

std::string host_name(const Settings& settings) {
  return settings.host_id.empty() ? host_name() : settings.host_id;
}

}  // namespace omnihvd
