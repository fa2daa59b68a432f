#include "innetwork/xdp/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <net/if.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "innetwork/xdp/device.h"

namespace omnihvd {
namespace {

// libbpf's last message is the useful one.
thread_local std::string libbpf_said;

int keep(libbpf_print_level level, const char* format, va_list arguments) {
  if (level == LIBBPF_DEBUG) return 0;
  char line[512];
  const int size = std::vsnprintf(line, sizeof line, format, arguments);
  libbpf_said += line;
  if (libbpf_said.size() > 2000) libbpf_said.erase(0, libbpf_said.size() - 2000);
  return size;
}

std::string why_and_what(int error) {
  return why(error) + (libbpf_said.empty() ? "" : "; " + libbpf_said);
}

}  // namespace

void XdpProgram::Close::operator()(bpf_object* object) const { bpf_object__close(object); }
void XdpProgram::Close::operator()(bpf_link* link) const { bpf_link__destroy(link); }

XdpProgram::XdpProgram(const std::string& file, const std::string& function) : function_(function) {
  libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
  libbpf_set_print(keep);
  libbpf_said.clear();
  object_.reset(bpf_object__open_file(file.c_str(), nullptr));
  if (!object_) throw Error("cannot read " + file + ": " + why(errno));
}

XdpProgram::~XdpProgram() = default;

bpf_map* XdpProgram::find(const char* name) const {
  bpf_map* const found = bpf_object__find_map_by_name(object_.get(), name);
  OMNIHVD_INVARIANT(found);
  return found;
}

void XdpProgram::set_constants(const void* constants, size_t size) {
  bpf_map* each;
  bpf_object__for_each_map(each, object_.get()) {
    if (!std::strstr(bpf_map__name(each), ".rodata")) continue;
    OMNIHVD_INVARIANT(bpf_map__set_initial_value(each, constants, size) == 0);
    return;
  }
  OMNIHVD_INVARIANT(false);
}

void XdpProgram::set_entries(const char* map, uint32_t entries) {
  bpf_map__set_max_entries(find(map), entries);
}

void XdpProgram::load() {
  if (const int error = bpf_object__load(object_.get()))
    throw Error("the kernel refuses the XDP program: " + why_and_what(-error));
}

void XdpProgram::attach(const std::string& name) {
  interface_address(name);  // or throws the reason
  const int index = int(if_nametoindex(name.c_str()));
  bpf_program* const program = bpf_object__find_program_by_name(object_.get(), function_.c_str());
  link_.reset(bpf_program__attach_xdp(program, index));
  if (link_) return;
  const int error = errno;
  if (error == EBUSY || error == EEXIST)
    throw Error("interface " + name + " has another XDP program: end what has put it there, or " +
                "take it away (ip link set dev " + name + " xdp off)");
  throw Error("cannot attach to interface " + name + ": " + why_and_what(error));
}

int XdpProgram::map(const char* name) const { return bpf_map__fd(find(name)); }

int XdpProgram::fd() const {
  return bpf_program__fd(bpf_object__find_program_by_name(object_.get(), function_.c_str()));
}

bpf_prog_info XdpProgram::info() const {
  bpf_prog_info found{};
  uint32_t size = sizeof found;
  bpf_obj_get_info_by_fd(fd(), &found, &size);
  return found;
}

}  // namespace omnihvd
