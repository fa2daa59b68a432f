#include "transport/ucx_address.h"

#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"

namespace omnihvd {
namespace {

constexpr char kMagic[] = "omnihvd ucx 4";

std::string checked(const std::string& body) {
  BytesWriter out;
  out.u64(fnv1a(body.data(), body.size()));
  return kMagic + out.bytes();
}

}  // namespace

std::string encode_address(const UcxAddress& address) {
  BytesWriter body;
  body.text(address.process.host);
  body.u64(address.process.pid);
  body.u64(address.process.start);
  body.text(address.hostname);
  body.text(address.network);
  body.u64(address.user);
  body.text(address.ucx);
  body.text(address.worker);
  body.text(address.worker_wide);
  return checked(body.bytes()) + body.bytes();
}

UcxAddress decode_address(const std::string& bytes) {
  constexpr size_t header = sizeof kMagic - 1 + sizeof(uint64_t);
  if (bytes.size() < header || bytes.compare(0, sizeof kMagic - 1, kMagic) != 0)
    throw Error(
        "not the address of a UCX transport of this version: do all processes of the job run the "
        "same omnihvd?");
  const std::string body = bytes.substr(header);
  if (checked(body) != bytes.substr(0, header))
    throw Error("the address of a UCX transport was damaged on its way");
  BytesReader in(body);
  UcxAddress address;
  address.process.host = in.text();
  address.process.pid = uint32_t(in.u64());
  address.process.start = in.u64();
  address.hostname = in.text();
  address.network = in.text();
  address.user = uint32_t(in.u64());
  address.ucx = in.text();
  address.worker = in.text();
  address.worker_wide = in.text();
  return address;
}

std::string this_network() {
  char name_space[64];
  const ssize_t length = readlink("/proc/self/ns/net", name_space, sizeof name_space);
  return std::string(name_space, length > 0 ? length : 0);
}

bool share_memory(const UcxAddress& a, const UcxAddress& b) {
  const bool has_any = a.worker != a.worker_wide && b.worker != b.worker_wide;
  return has_any && a.process.host == b.process.host && a.network == b.network && a.user == b.user;
}

}  // namespace omnihvd
