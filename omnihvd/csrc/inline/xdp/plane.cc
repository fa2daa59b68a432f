#include "inline/xdp/plane.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "inline/addresses.h"
#include "inline/xdp/aggregator_maps.h"
#include "transport/file_descriptor.h"

namespace omnihvd {
namespace {

constexpr char kRights[] = ": it takes root, or the capabilities CAP_BPF and CAP_NET_ADMIN";

// What libbpf says last is what matters of it.
thread_local std::string libbpf_said;

int keep(libbpf_print_level level, const char* format, va_list arguments) {
  if (level == LIBBPF_DEBUG) return 0;
  char line[512];
  const int size = std::vsnprintf(line, sizeof line, format, arguments);
  libbpf_said += line;
  if (libbpf_said.size() > 2000) libbpf_said.erase(0, libbpf_said.size() - 2000);
  return size;
}

std::string why(int error) {
  return std::strerror(error) + std::string(error == EPERM || error == EACCES ? kRights : "");
}

ifreq asked(const std::string& interface, unsigned long what) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
  ifreq request{};
  if (interface.empty() || interface.size() >= sizeof request.ifr_name)
    throw Error("'" + interface + "' is no interface's name");
  std::memcpy(request.ifr_name, interface.c_str(), interface.size());
  if (ioctl(socket, what, &request) != 0) {
    if (errno == ENODEV) throw Error("there is no interface " + interface + " (see: ip link)");
    if (errno == EADDRNOTAVAIL) throw Error("interface " + interface + " has no IPv4 address");
    throw Error("interface " + interface + ": " + why(errno));
  }
  return request;
}

}  // namespace

static_assert(INLINE_XDP_COUNTS == int(kInlineCounts));
static_assert(int(InlineCount::duplicate) == INLINE_XDP_DUPLICATE);
static_assert(int(InlineCount::stranger) == INLINE_XDP_STRANGER);

std::string interface_address(const std::string& interface) {
  if (!(asked(interface, SIOCGIFFLAGS).ifr_flags & IFF_UP))
    throw Error("interface " + interface + " is not up: ip link set " + interface + " up");
  const ifreq found = asked(interface, SIOCGIFADDR);
  sockaddr_in at;
  std::memcpy(&at, &found.ifr_addr, sizeof at);
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &at.sin_addr, text, sizeof text);
}

void XdpPlane::Close::operator()(bpf_object* object) const { bpf_object__close(object); }
void XdpPlane::Close::operator()(bpf_link* link) const { bpf_link__destroy(link); }

XdpPlane::XdpPlane(const Options& options) : options_(options) {
  libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
  libbpf_set_print(keep);
  libbpf_said.clear();
  load();
  if (!options.interface.empty()) attach();
}

XdpPlane::~XdpPlane() = default;

void XdpPlane::load() {
  object_.reset(bpf_object__open_file(options_.object.c_str(), nullptr));
  if (!object_) throw Error("cannot read " + options_.object + ": " + why(errno));
  bpf_map* constants = nullptr;
  bpf_map* each;
  bpf_object__for_each_map(each, object_.get()) {
    if (std::strstr(bpf_map__name(each), ".rodata")) constants = each;
  }
  OMNIHVD_INVARIANT(constants);
  inline_xdp_constants own{};
  own.address = htonl(uint32_t(ipv4(options_.host, 0) >> 16));
  own.port = htons(options_.port);
  own.slots_per_job = options_.slots;
  OMNIHVD_INVARIANT(bpf_map__set_initial_value(constants, &own, sizeof own) == 0);
  bpf_map__set_max_entries(map("jobs"), options_.jobs);
  bpf_map__set_max_entries(map("slots"), options_.jobs * options_.slots);
  if (const int error = bpf_object__load(object_.get()))
    throw Error("the kernel does not take the XDP program: " + why(-error) +
                (libbpf_said.empty() ? "" : "; " + libbpf_said));
}

void XdpPlane::attach() {
  const std::string& name = options_.interface;
  interface_address(name);  // or says why not
  const int index = int(if_nametoindex(name.c_str()));
  bpf_program* const program = bpf_object__find_program_by_name(object_.get(), "aggregate");
  link_.reset(bpf_program__attach_xdp(program, index));
  if (link_) return;
  const int error = errno;
  if (error == EBUSY || error == EEXIST)
    throw Error("interface " + name + " has another XDP program: end what has put it there, or " +
                "take it away (ip link set dev " + name + " xdp off)");
  throw Error("cannot attach to interface " + name + ": " + why(error) +
              (libbpf_said.empty() ? "" : "; " + libbpf_said));
}

bpf_map* XdpPlane::map(const char* name) const {
  bpf_map* const found = bpf_object__find_map_by_name(object_.get(), name);
  OMNIHVD_INVARIANT(found);
  return found;
}

int XdpPlane::program() const {
  return bpf_program__fd(bpf_object__find_program_by_name(object_.get(), "aggregate"));
}

void XdpPlane::set_job(size_t job, uint64_t key, uint32_t workers) {
  inline_xdp_job entry{};
  const uint32_t index = uint32_t(job);
  const auto put = [&](const char* name, uint32_t at, const void* value) {
    if (bpf_map_update_elem(bpf_map__fd(map(name)), &at, value, BPF_ANY) != 0)
      throw Error(std::string("cannot tell the XDP program of a job: ") + why(errno));
  };
  put("jobs", index, &entry);
  if (workers == 0) return;
  // Who has seen the job that was there is done with its datagram.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto fresh = std::make_unique<inline_xdp_slot>();
  slot_reset(&fresh->state, workers);
  for (uint32_t i = 0; i < options_.slots; ++i)
    put("slots", index * options_.slots + i, fresh.get());
  const uint64_t group = ipv4(options_.group, 0) >> 16;
  entry.key = key;
  entry.workers = workers;
  entry.group = htonl(uint32_t(group));
  entry.group_port = htons(options_.port);
  const uint8_t mac[] = {
      0x01, 0x00, 0x5E, uint8_t(group >> 16 & 0x7F), uint8_t(group >> 8), uint8_t(group)};
  std::memcpy(entry.mac, mac, sizeof mac);
  put("jobs", index, &entry);
}

uint64_t XdpPlane::contributions(size_t job) const {
  const uint32_t index = uint32_t(job);
  inline_xdp_job entry{};
  bpf_map_lookup_elem(bpf_map__fd(map("jobs")), &index, &entry);
  return entry.contributions;
}

uint32_t XdpPlane::round(size_t job, uint16_t slot) const {
  const uint32_t index = uint32_t(job) * options_.slots + slot;
  const auto entry = std::make_unique<inline_xdp_slot>();
  bpf_map_lookup_elem(bpf_map__fd(map("slots")), &index, entry.get());
  return entry->state.round;
}

std::array<uint64_t, kInlineCounts> XdpPlane::counts() const {
  std::array<uint64_t, kInlineCounts> sums{};
  std::vector<uint64_t> each(static_cast<size_t>(libbpf_num_possible_cpus()));
  for (uint32_t i = 0; i < kInlineCounts; ++i)
    if (bpf_map_lookup_elem(bpf_map__fd(map("counts")), &i, each.data()) == 0)
      for (const uint64_t count : each) sums[i] += count;
  return sums;
}

bpf_prog_info XdpPlane::info() const {
  bpf_prog_info found{};
  uint32_t size = sizeof found;
  bpf_obj_get_info_by_fd(program(), &found, &size);
  return found;
}

std::pair<uint64_t, uint64_t> XdpPlane::run_time() const {
  const bpf_prog_info found = info();
  return {found.run_cnt, found.run_time_ns};
}

uint32_t XdpPlane::verified_instructions() const { return info().verified_insns; }

XdpPlane::Run XdpPlane::run(const std::string& frame, uint32_t repeat) const {
  std::string out(4096, '\0');
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = frame.data();
  options.data_size_in = uint32_t(frame.size());
  options.data_out = out.data();
  options.data_size_out = uint32_t(out.size());
  options.repeat = int(repeat);
  if (const int error = bpf_prog_test_run_opts(program(), &options))
    throw Error("the kernel does not run the XDP program: " + why(-error));
  return {options.retval, options.duration, out.substr(0, options.data_size_out)};
}

}  // namespace omnihvd
