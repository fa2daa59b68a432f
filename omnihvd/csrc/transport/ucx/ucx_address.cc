#include "transport/ucx/ucx_address.h"

#include <unistd.h>

#include "base/bytes.h"
#include "transport/address.h"

namespace omnihvd {

constexpr char kUcxAddress[] = "omnihvd ucx 4";

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
  return wrap_address(kUcxAddress, body.bytes());
}

UcxAddress decode_address(const std::string& bytes) {
  const std::string body = unwrap_address(kUcxAddress, bytes);
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
