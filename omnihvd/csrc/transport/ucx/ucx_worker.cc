#include "transport/ucx/ucx_worker.h"

#include <fcntl.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "transport/file_descriptor.h"
#include "transport/ucx/ucx_system.h"

namespace omnihvd {
namespace {

struct Default {
  const char* name;
  const char* value;
  bool fixed = false;  // ignores the environment
};

// Our changes to UCX's defaults. A variable UCX_<name> in the environment takes precedence.
// Figures: two processes on one two-core machine, messages of 56 KiB in 56 slices. PROTO_ENABLE=n
// would spare 7 ms of a processor at the first connection, but UCX then never returns from progress
// if a peer connects while no descriptor is left.
constexpr Default kDefaults[] = {
    // Without it, UCX does not use shared memory for endpoints that must notice failures.
    {"POSIX_ERROR_HANDLING", "y"},
    {"SYSV_ERROR_HANDLING", "y"},
    // Messages of the 64 KiB class go in one piece, which the receiver reads in place. Fragments of
    // 8 KiB would first be assembled in a buffer: 28 against 12 GB/s over shared memory, 7.3
    // against 1.5 GB/s over TCP. UCX 1.22 corrupts data if a shared memory segment is 64 KiB or
    // more.
    {"POSIX_SEG_SIZE", "63k"},
    {"SYSV_SEG_SIZE", "63k"},
    {"TCP_TX_SEG_SIZE", "128k"},
    {"TCP_RX_SEG_SIZE", "128k"},
    // As much shared memory as with UCX's defaults (4 MiB), in fewer and larger pieces.
    {"POSIX_FIFO_SIZE", "64"},
    {"SYSV_FIFO_SIZE", "64"},
    {"POSIX_RX_BUFS_GROW", "64"},
    {"SYSV_RX_BUFS_GROW", "64"},
    // In a full /dev/shm UCX 1.22 takes memory of the process alone for receive buffers, and then
    // ends by SIGSEGV, since these have no segment. So it fails, and open() leaves memory out.
    {"POSIX_ALLOC", "md", true},
    {"SYSV_ALLOC", "md", true},
    // Zero-copy takes 6 slices at a time: 0.13 GB/s for 64 KiB of 100-byte slices over TCP, against
    // 5 GB/s when UCX gathers the slices in a buffer. Transport::detach() relies on it.
    {"ZCOPY_THRESH", "inf", true},
    // Connecting does not block, and gives up after 1 + 2 + 4 + 8 seconds.
    {"TCP_CONN_NB", "y"},
    {"TCP_SYN_CNT", "3"},
    // A host that vanishes is noticed after about half a minute: an idle connection by these, a
    // busy one by shut_silent_connections(). A process that ends is noticed at once, because its
    // kernel closes the connection.
    {"TCP_KEEPIDLE", "10s"},
    {"TCP_KEEPINTVL", "2s"},
    {"KEEPALIVE_INTERVAL", "2s"},
};

// UCX's transports, in order of preference; the first that works is used. All messages lie in host
// memory, and UCX's CUDA parts would make CUDA calls in the progress threads, for which a CUDA
// stream may be waiting. If UCX cannot open shared memory, as with /dev/shm mounted read-only, it
// fails instead of leaving it out.
constexpr const char* kTransports[] = {"^cuda", "^cuda,posix", "^cuda,posix,sysv"};

// A site's UCX_TLS, but for these parts.
std::string without_cuda(const std::string& asked) {
  if (asked.rfind('^', 0) == 0) return asked + ",cuda";
  std::string kept;
  std::istringstream names(asked);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "all") return kTransports[0];
    if (name.rfind("cuda", 0) != 0 && name != "gdr_copy") kept += (kept.empty() ? "" : ",") + name;
  }
  return kept;
}

bool has_posix_memory() {
  const char* folder = std::getenv("UCX_POSIX_DIR");
  return access(folder ? folder : "/dev/shm", W_OK) == 0;
}

void set_defaults(ucp_config_t* config) {
  for (const Default& setting : kDefaults) {
    if (!setting.fixed && std::getenv((std::string("UCX_") + setting.name).c_str())) continue;
    const ucs_status_t status = ucp_config_modify(config, setting.name, setting.value);
    if (status != UCS_OK)  // an older UCX may lack it
      log(LogLevel::info, "UCX has no setting ", setting.name, ": ", ucs_status_string(status));
  }
}

// The transports and devices that UCX found, parsed from its own report: "# resource 1 : md 1 dev 0
// flags -- tcp/eth0". There is no other interface to them.
std::string devices(ucp_context_h context) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (!stream) return "unknown";
  ucp_context_print_info(context, stream);
  std::fclose(stream);
  std::istringstream lines(std::string(text, size));
  std::free(text);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" resource ") == std::string::npos) continue;
    found += (found.empty() ? "" : ", ") + line.substr(line.rfind(' ') + 1);
  }
  return found.empty() ? "unknown" : found;
}

// UCX ends the process if it runs out of descriptors: it needs 14 here, and more for more devices.
void check_descriptors() {
  std::vector<FileDescriptor> spare;
  while (spare.size() < 32) spare.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC), "open");
}

ucs_log_func_rc_t on_log_line(const char*, unsigned, const char*, ucs_log_level_t level,
                              const ucs_log_component_config_t*, const char* format,
                              va_list arguments) {
  const bool ours = level == UCS_LOG_LEVEL_ERROR || level == UCS_LOG_LEVEL_WARN;
  if (!ours) return UCS_LOG_FUNC_RC_CONTINUE;
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  // If a peer's memory is gone, the peer has ended. If that matters, its failure is reported. It
  // does not matter if ranks end their job at different times and one was still connecting.
  const bool peer_ended = std::strstr(text, "shmat(") && std::strstr(text, "Invalid argument");
  log(peer_ended ? LogLevel::debug : LogLevel::warning, "UCX: ", text);
  return UCS_LOG_FUNC_RC_STOP;
}

// From now on, errors and warnings of UCX (whoever uses it in this process) become warnings of
// omnihvd: UCX would write to standard output, which is the program's. Does nothing if the user
// steers UCX's log with UCX_LOG_LEVEL or UCX_LOG_FILE.
void take_over_ucx_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!std::getenv("UCX_LOG_LEVEL") && !std::getenv("UCX_LOG_FILE"))
      ucs_log_push_handler(on_log_line);
  });
}

}  // namespace

void check_ucx(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw Error(std::string(what) + ": " + reason_of(status));
}

std::string reason_of(ucs_status_t status) {
  const int probe = dup(STDERR_FILENO);
  const bool lacking = probe < 0 && none_left(errno);
  if (probe >= 0) ::close(probe);
  return std::string(ucs_status_string(status)) +
         (lacking ? std::string(": ") + kNoDescriptors : "");
}

std::string transports_of(ucp_ep_h endpoint) {
  ucp_transport_entry_t entries[8];
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries;
  attributes.transports.num_entries = 8;
  attributes.transports.entry_size = sizeof entries[0];
  std::string names;
  if (ucp_ep_query(endpoint, &attributes) != UCS_OK) return names;
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    const std::string name = std::string(entries[i].transport_name) + "/" + entries[i].device_name;
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : "+") + name;
  }
  return names;
}

UcxWorker::UcxWorker() {
  check_descriptors();
  take_over_ucx_log();
  steer_ucx_system_calls();
  const char* const asked = std::getenv("UCX_TLS");
  size_t at = asked || has_posix_memory() ? 0 : 1;
  ucs_status_t status = open(asked ? without_cuda(asked).c_str() : kTransports[at]);
  const auto lacks_memory = [&] {
    return status == UCS_ERR_SHMEM_SEGMENT || status == UCS_ERR_NO_MEMORY ||
           status == UCS_ERR_NO_RESOURCE;
  };
  while (lacks_memory() && !asked && ++at < std::size(kTransports)) status = open(kTransports[at]);
  if (status == UCS_OK && at + 1 == std::size(kTransports))
    log(LogLevel::warning,
        "UCX can open no shared memory, so that ranks of this host use TCP, which is slower: let "
        "them write to /dev/shm, or have System V shared memory");
  check_ucx(status, "UCX could not open its devices (see UCX_TLS and UCX_NET_DEVICES)");
}

// transports: replaces UCX's own choice.
ucs_status_t UcxWorker::open(const char* transports) {
  ucp_config_t* config;
  check_ucx(ucp_config_read(nullptr, nullptr, &config), "UCX's settings (UCX_*) cannot be read");
  set_defaults(config);
  ucp_config_modify(config, "TLS", transports);

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "omnihvd";
  // If an MPI has loaded an older UCX first, that one is in use: every function called here exists
  // in 1.14.
  ucs_status_t status = ucp_init_version(1, 14, &params, config, &context_);
  ucp_config_release(config);
  check_ucx(status,
            "UCX found nothing to communicate over; UCX_TLS and UCX_NET_DEVICES say what it may "
            "use, and `ucx_info -d` what there is");

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT;
  // One thread creates the worker; another uses it afterwards.
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.am_alignment = 8;
  status = ucp_worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) ucp_cleanup(context_);
  return status;
}

int UcxWorker::event_fd() const {
  int fd;
  check_ucx(ucp_worker_get_efd(worker_, &fd), "UCX gives no descriptor to wait on");
  return fd;
}

std::string UcxWorker::address(unsigned flags) const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = flags;
  check_ucx(ucp_worker_query(worker_, &attributes), "UCX gives no address");
  std::string bytes(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  return bytes;
}

std::string ucx_version() {
  unsigned major, minor, release;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor);
}

// CMA and KNEM copy large messages, but messages do not travel through them.
bool UcxWorker::has_shared_memory() const {
  const std::string found = devices(context_);
  for (const char* name : {"posix/", "sysv/", "xpmem/"})
    if (found.find(name) != std::string::npos) return true;
  return false;
}

std::string UcxWorker::describe() const {
  return std::string("UCX ") + ucp_get_version_string() + ": " + devices(context_);
}

}  // namespace omnihvd
