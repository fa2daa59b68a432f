#include "transport/address.h"

#include <cctype>

#include "base/error.h"
#include "base/log.h"
#include "transport/registry.h"

namespace omnihvd {
namespace {

std::string head_of(const char* magic, const std::string& body) {
  BytesWriter out;
  out.u64(fnv1a(body.data(), body.size()));
  return magic + out.bytes();
}

// "udp", from "omnihvd udp 1".
std::string word_of(const std::string& magic) { return magic.substr(8, magic.find(' ', 8) - 8); }

std::string upper(std::string word) {
  for (char& c : word) c = char(std::toupper(static_cast<unsigned char>(c)));
  return word;
}

}  // namespace

AddressOwner this_owner() { return {this_process(), host_name(), name_space("net")}; }

void write_owner(BytesWriter& out, const AddressOwner& owner) {
  out.text(owner.process.host);
  out.u64(owner.process.pid);
  out.u64(owner.process.start);
  out.text(owner.hostname);
  out.text(owner.network);
}

AddressOwner read_owner(BytesReader& in) {
  return {{in.text(), in.number<uint32_t>(), in.u64()}, in.text(), in.text()};
}

std::string name_of(const AddressOwner& owner) {
  return "process " + std::to_string(owner.process.pid) + " on " + owner.hostname;
}

bool share_network(const AddressOwner& a, const AddressOwner& b) {
  return a.process.host == b.process.host && a.network == b.network;
}

std::string wrap_address(const char* magic, const std::string& body) {
  return head_of(magic, body) + body;
}

std::string unwrap_address(const char* magic, const std::string& bytes) {
  for (const std::string& other : transport_names())
    if (other != word_of(magic) && bytes.rfind("omnihvd " + other + " ", 0) == 0)
      throw Error("its address is of the transport " + other + ", and this process uses " +
                  word_of(magic) + ": set OMNIHVD_TRANSPORT alike everywhere");
  const std::string name = upper(word_of(magic));
  const size_t header = std::string(magic).size() + sizeof(uint64_t);
  if (bytes.size() < header || bytes.rfind(magic, 0) != 0)
    throw Error("not the address of a " + name +
                " transport of this version: do all processes of the job run the same omnihvd?");
  std::string body = bytes.substr(header);
  if (head_of(magic, body) != bytes.substr(0, header))
    throw Error("the address of a " + name + " transport was damaged on its way");
  return body;
}

}  // namespace omnihvd
