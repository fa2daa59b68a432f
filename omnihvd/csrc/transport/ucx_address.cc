#include "transport/ucx_address.h"

#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace omnihvd {
namespace {

constexpr char kMagic[] = "omnihvd ucx 3";

// FNV-1a: tells damaged bytes, not malicious ones.
uint64_t checksum(const char* data, size_t size) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001b3;
  }
  return hash;
}

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& to, const std::string& value) {
  put(to, static_cast<uint32_t>(value.size()));
  to += value;
}

class Reader {
 public:
  Reader(const char* data, size_t size) : at_(data), left_(size) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  std::string string() {
    const size_t size = number<uint32_t>();
    return std::string(take(size), size);
  }

 private:
  const char* take(size_t size) {
    if (size > left_) throw Error("not the address of a UCX transport: it is cut short");
    const char* begin = at_;
    at_ += size;
    left_ -= size;
    return begin;
  }

  const char* at_;
  size_t left_;
};

}  // namespace

std::string encode_address(const UcxAddress& address) {
  std::string body;
  put(body, address.process.pid);
  put(body, address.process.start);
  put_string(body, address.process.host);
  put_string(body, address.hostname);
  put_string(body, address.network);
  put(body, address.user);
  put_string(body, address.ucx);
  put_string(body, address.worker);
  put_string(body, address.worker_wide);
  std::string bytes(kMagic);
  put(bytes, checksum(body.data(), body.size()));
  return bytes + body;
}

UcxAddress decode_address(const std::string& bytes) {
  constexpr size_t magic_size = sizeof kMagic - 1;
  constexpr size_t header_size = magic_size + sizeof(uint64_t);
  if (bytes.size() < header_size || bytes.compare(0, magic_size, kMagic) != 0) {
    throw Error(
        "not the address of a UCX transport of this version: do all processes of the job run the "
        "same omnihvd?");
  }
  uint64_t expected;
  std::memcpy(&expected, bytes.data() + magic_size, sizeof expected);
  const char* body = bytes.data() + header_size;
  const size_t body_size = bytes.size() - header_size;
  if (checksum(body, body_size) != expected) {
    throw Error("the address of a UCX transport was damaged on its way");
  }
  Reader reader(body, body_size);
  UcxAddress address;
  address.process.pid = reader.number<uint32_t>();
  address.process.start = reader.number<uint64_t>();
  address.process.host = reader.string();
  address.hostname = reader.string();
  address.network = reader.string();
  address.user = reader.number<uint32_t>();
  address.ucx = reader.string();
  address.worker = reader.string();
  address.worker_wide = reader.string();
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
