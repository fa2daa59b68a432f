// The common part of all addresses: it names the transport and the process, and detects damage.
#pragma once

#include <string>

#include "base/bytes.h"
#include "transport/process_watch.h"

namespace omnihvd {

// The process behind an address.
struct AddressOwner {
  ProcessId process;
  std::string hostname;
  std::string network;  // namespace, on that host
};

AddressOwner this_owner();  // throws Error
void write_owner(BytesWriter& out, const AddressOwner& owner);
AddressOwner read_owner(BytesReader& in);        // throws Error
std::string name_of(const AddressOwner& owner);  // "process 4711 on node1"
// Whether both are in one network namespace of one host.
bool share_network(const AddressOwner& a, const AddressOwner& b);

// magic: "omnihvd", the transport's name and a version of the address.
std::string wrap_address(const char* magic, const std::string& body);
// Returns the body. Throws Error unless wrap_address() made the bytes with this magic.
std::string unwrap_address(const char* magic, const std::string& bytes);

}  // namespace omnihvd
