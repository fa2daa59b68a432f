#include "session/settings.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "session/auto_streams.h"

extern char** environ;

namespace omnihvd {
namespace {

using Parse = std::function<void(Settings&, const std::string& value)>;
struct Entry {
  SettingDoc doc;
  Parse parse;  // throws anything when the value is not allowed
};

[[noreturn]] void refuse() { throw Error("not allowed"); }

// Case does not matter where there are only a few words.
std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool boolean(const std::string& text) {
  const std::string value = lower(text);
  if (value == "1" || value == "on" || value == "true") return true;
  if (value == "0" || value == "off" || value == "false") return false;
  refuse();
}

uint64_t integer(const std::string& value, uint64_t least, uint64_t most) {
  if (value.empty() || value.size() > 19 ||
      value.find_first_not_of("0123456789") != std::string::npos)
    refuse();
  const uint64_t number = std::stoull(value);
  if (number < least || number > most) refuse();
  return number;
}

double seconds(const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (end == value.c_str() || *end || !(number >= 0 && number < 1e9)) refuse();
  return number;
}

template <typename Value>
Value choice(const std::map<std::string, Value>& choices, const std::string& value) {
  const auto found = choices.find(lower(value));
  if (found == choices.end()) refuse();
  return found->second;
}

std::vector<std::string> addresses(const std::string& value) {
  std::vector<std::string> list;
  std::istringstream in(value);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t colon = item.rfind(':');
    if (colon == std::string::npos || colon == 0) refuse();
    integer(item.substr(colon + 1), 1, 65535);
    list.push_back(item);
  }
  return list;
}

std::string file_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) throw Error("the file cannot be read");
  std::string text = content.str();
  while (!text.empty() && std::strchr("\r\n \t", text.back())) text.pop_back();
  return text;
}

// A secret that any user of the host can read is none. (Its group may: so clusters hand out files.)
void check_permissions(const std::string& path) {
  struct stat file;
  if (::stat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) &&
      (file.st_mode & (S_IROTH | S_IWOTH)))
    throw Error("every user of this host can read the file or write to it: chmod 600 " + path);
}

std::string secret(const std::string& text) {
  if (text.size() < 16) throw Error("a secret needs at least 16 characters");
  return text;
}

template <typename Member>
Parse number(Member member, uint64_t least, uint64_t most) {
  return [=](Settings& s, const std::string& v) { s.*member = integer(v, least, most); };
}

// The one definition of all settings.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{"OMNIHVD_ENABLE", "1", "0 or 1", "0: every call goes to the original library"},
       [](Settings& s, const std::string& v) { s.enable = boolean(v); }},
      {{"OMNIHVD_MIN_BYTES", "262144", "0 .. 2^60",
        "smaller tensors go to the original library, which is as fast for them"},
       number(&Settings::min_bytes, 0, 1ull << 60)},
      {{"OMNIHVD_BLOCK_SIZE", "256", "8 .. 65536", "elements of a block"},
       number(&Settings::block_size, 8, 65536)},
      {{"OMNIHVD_MESSAGE_BYTES", "57344", "64 .. 2^26",
        "bytes of blocks that are sent together; with headers, a message of 63 KiB or less is "
        "cheapest"},
       number(&Settings::message_bytes, 64, 1u << 26)},
      {{"OMNIHVD_SLOTS", "8", "1 .. 65536",
        "messages that a worker has under way to an aggregator; more for longer round trips"},
       number(&Settings::slots, 1, 65536)},
      {{"OMNIHVD_STREAMS", "auto", "auto, 1 .. 64",
        "engine threads of a process; auto: as many as fill the host's fastest link, if each can "
        "have "
        "two cores"},
       [](Settings& s, const std::string& v) {
         s.streams = lower(v) == "auto" ? automatic_streams() : uint32_t(integer(v, 1, 64));
       }},
      {{"OMNIHVD_SCAN_AHEAD", "2048", "1 .. 2^30",
        "blocks that are inspected ahead of what is being sent in a slot"},
       number(&Settings::scan_ahead, 1, 1u << 30)},
      {{"OMNIHVD_SPIN_US", "5", "0 .. 1000000",
        "microseconds for which an engine thread polls before it sleeps"},
       number(&Settings::spin_us, 0, 1000000)},
      {{"OMNIHVD_WAY", "auto", "auto, stream, shared, union or original",
        "how sums are made: through aggregators, over the memory of one host (else through "
        "aggregators), by the original library on the union of the non-zero blocks, or by it on "
        "whole tensors; auto: in the way that has been fastest"},
       [](Settings& s, const std::string& v) {
         s.way = choice<WaySetting>({{"auto", WaySetting::automatic},
                                     {"stream", WaySetting::stream},
                                     {"shared", WaySetting::shared},
                                     {"union", WaySetting::unite},
                                     {"original", WaySetting::original}},
                                    v);
       }},
      {{"OMNIHVD_GPU", "auto", "auto, union, stream or original",
        "how sums on GPUs are made: by NCCL on the union of the non-zero blocks, through "
        "aggregators, or by NCCL on whole tensors; auto: as is estimated to be the fastest"},
       [](Settings& s, const std::string& v) {
         s.gpu = choice<GpuWay>({{"auto", GpuWay::automatic},
                                 {"union", GpuWay::unite},
                                 {"stream", GpuWay::stream},
                                 {"original", GpuWay::original}},
                                v);
       }},
      {{"OMNIHVD_GPU_CHUNK_BYTES", "8388608", "65536 .. 2^30",
        "bytes of a union that NCCL sums together; the next ones are gathered meanwhile"},
       number(&Settings::gpu_chunk_bytes, 65536, 1ull << 30)},
      {{"OMNIHVD_GPU_MIN_BYTES", "1048576", "0 .. 2^60",
        "on GPUs, smaller tensors go to NCCL, which is as fast for them"},
       number(&Settings::gpu_min_bytes, 0, 1ull << 60)},
      {{"OMNIHVD_POLITE", "1", "0 or 1",
        "1: threads of Horovod and Open MPI that wait for a sum sleep instead of polling"},
       [](Settings& s, const std::string& v) { s.polite = boolean(v); }},
      {{"OMNIHVD_DETERMINISTIC", "0", "0 or 1",
        "1: add in rank order, so that runs reproduce bit for bit"},
       [](Settings& s, const std::string& v) { s.deterministic = boolean(v); }},
      {{"OMNIHVD_HIERARCHY", "auto", "auto, on or off",
        "reduce among the ranks of a host before streaming between hosts; auto: when there are "
        "several hosts with the same number of ranks"},
       [](Settings& s, const std::string& v) {
         s.hierarchy = choice<Hierarchy>(
             {{"auto", Hierarchy::automatic}, {"on", Hierarchy::on}, {"off", Hierarchy::off}}, v);
       }},
      {{"OMNIHVD_COMPRESS_FIRST", "0", "0 or 1",
        "of GPUs that reduce inside a host first. 1: each finds its non-zero blocks before, and "
        "these are summed in the host's memory; 0: NCCL sums whole tensors, over NVLink"},
       [](Settings& s, const std::string& v) { s.compress_first = boolean(v); }},
      {{"OMNIHVD_HOST_ID", "", "any text", "name of this host, where host names do not differ"},
       [](Settings& s, const std::string& v) { s.host_id = v; }},
      {{"OMNIHVD_KERNEL_CACHE", "", "path",
        "folder of the kernels compiled for this machine's GPUs; none: ~/.cache/omnihvd/kernels"},
       [](Settings& s, const std::string& v) { s.kernel_cache = v; }},
      {{"OMNIHVD_AGGREGATORS", "", "host:port,...",
        "dedicated aggregators (`omnihvd aggregator`); none: every rank aggregates a share"},
       [](Settings& s, const std::string& v) { s.aggregators = addresses(v); }},
      {{"OMNIHVD_SECRET", "", "16 characters or more",
        "shared by the workers and dedicated aggregators of a job"},
       [](Settings& s, const std::string& v) { s.secret = secret(v); }},
      {{"OMNIHVD_SECRET_FILE", "", "path", "file that holds the secret"},
       [](Settings& s, const std::string& v) {
         check_permissions(v);
         s.secret = secret(file_content(v));
       }},
      {{"OMNIHVD_ENCRYPT", "0", "0 or 1",
        "1: messages between hosts are encrypted and authenticated; needs a secret on all ranks"},
       [](Settings& s, const std::string& v) { s.encrypt = boolean(v); }},
      {{"OMNIHVD_TIMEOUT", "0", "seconds; 0: none",
        "an allreduce that takes longer fails on all ranks"},
       [](Settings& s, const std::string& v) { s.timeout_s = seconds(v); }},
      {{"OMNIHVD_JOIN_TIMEOUT", "", "seconds; 0: none",
        "how long ranks wait for each other before their first allreduce on an MPI communicator; "
        "none: 10 s with Horovod, whose ranks come together, 600 s in other programs"},
       [](Settings& s, const std::string& v) { s.join_timeout_s = seconds(v); }},
      {{"OMNIHVD_STALL_WARNING", "60", "seconds; 0: none",
        "an allreduce that waits this long for a rank is reported, with the rank"},
       [](Settings& s, const std::string& v) { s.stall_warning_s = seconds(v); }},
      {{"OMNIHVD_TRACE", "", "path",
        "file of what the engine did when, for Perfetto (docs/observing.md); of rank N: with "
        ".rank-N before its ending"},
       [](Settings& s, const std::string& v) { s.trace = v; }},
      {{"OMNIHVD_STATS", "", "path",
        "file of lines of JSON, one for each step, with each of its sums; of rank N: as above"},
       [](Settings& s, const std::string& v) { s.stats = v; }},
      {{"OMNIHVD_METRICS", "", "port or host:port",
        "where the figures are to be had for Prometheus; of rank N of a host: N ports on"},
       [](Settings& s, const std::string& v) {
         if (v.find(':') == std::string::npos)
           integer(v, 1, 65535);
         else if (addresses(v).size() != 1)
           refuse();
         s.metrics = v;
       }},
      {{"OMNIHVD_WATCHABLE", "1", "0 or 1",
        "1: `omnihvd top` of the same user may ask for figures, over a local socket"},
       [](Settings& s, const std::string& v) { s.watchable = boolean(v); }},
      {{"OMNIHVD_LOG", "warning", "debug, info, warning, error or off", "what is logged to stderr"},
       [](Settings& s, const std::string& v) {
         s.log = choice<LogLevel>({{"debug", LogLevel::debug},
                                   {"info", LogLevel::info},
                                   {"warning", LogLevel::notice},
                                   {"error", LogLevel::error},
                                   {"off", LogLevel::off}},
                                  v);
       }},
  };
  return all;
}

// How many letters must be changed, left out or added to make b of a.
size_t distance(const std::string& a, const std::string& b) {
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
  const auto close = [&](const Entry& e) { return distance(name, e.doc.name); };
  const Entry& best =
      *std::min_element(entries().begin(), entries().end(),
                        [&](const Entry& a, const Entry& b) { return close(a) < close(b); });
  return close(best) <= 3 ? "did you mean " + best.doc.name + "? " : "";
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  settings.streams = automatic_streams();
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (name.rfind("OMNIHVD_", 0) != 0 || equals == std::string::npos) continue;
    if (name == "OMNIHVD_UCX_HOME") continue;  // setup.py's, which may stay exported
    const std::string value = text.substr(equals + 1);
    const Entry* entry = nullptr;
    for (const Entry& e : entries())
      if (e.doc.name == name) entry = &e;
    if (!entry)
      throw Error("unknown setting " + name + ": " + meant(name) +
                  "see `omnihvd check --settings` for all settings");
    if (value.empty()) continue;
    try {
      entry->parse(settings, value);
    } catch (const std::exception& why) {
      // A secret is not to be shown.
      const bool show = name.find("SECRET") == std::string::npos;
      throw Error(name + (show ? "=" + value : "") + ": " + why.what() +
                  "; allowed: " + entry->doc.allowed);
    }
  }
  if (!settings.aggregators.empty() && settings.secret.empty())
    throw Error(
        "OMNIHVD_AGGREGATORS needs OMNIHVD_SECRET or OMNIHVD_SECRET_FILE, the same as the "
        "aggregators'");
  return settings;
}

const std::vector<SettingDoc>& setting_docs() {
  static const std::vector<SettingDoc> docs = [] {
    std::vector<SettingDoc> list;
    for (const Entry& entry : entries()) list.push_back(entry.doc);
    return list;
  }();
  return docs;
}

std::string host_name(const Settings& settings) {
  return settings.host_id.empty() ? host_name() : settings.host_id;
}

}  // namespace omnihvd
