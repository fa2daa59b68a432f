#include "transport/ucx/ucx_address.h"

namespace omnihvd {

constexpr char kUcxAddress[] = "omnihvd ucx 4";

std::string encode_address(const UcxAddress& address) {
  BytesWriter body;
  write_owner(body, address);
  body.u64(address.user);
  body.text(address.ucx);
  body.text(address.worker);
  body.text(address.worker_wide);
  return wrap_address(kUcxAddress, body.bytes());
}

UcxAddress decode_address(const std::string& bytes) {
  const std::string body = unwrap_address(kUcxAddress, bytes);
  BytesReader in(body);
  return {read_owner(in), in.number<uint32_t>(), in.text(), in.text(), in.text()};
}

bool share_memory(const UcxAddress& a, const UcxAddress& b) {
  const bool has_any = a.worker != a.worker_wide && b.worker != b.worker_wide;
  return has_any && share_network(a, b) && a.user == b.user;
}

}  // namespace omnihvd
