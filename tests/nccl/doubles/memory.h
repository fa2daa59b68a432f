// The memory of a GPU that is not there.
//
// Every piece has an address for the device, which nobody can read or write, and one for the host.
// So a host that takes device memory for its own dies, and a kernel that is given a host's address
// is noticed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace doubles {

enum class Kind { device, pinned };

// Returns the device's address; null if there is no memory.
uint8_t* allocate(size_t bytes, Kind kind);
// By the device's address for device memory, the host's for pinned. False: there is no such piece.
// Dies if something was written behind the end.
bool release(void* address, Kind kind);

// Where the host finds what the device has at the address; null unless all of it is one piece.
uint8_t* host_of(uint64_t device_address, size_t bytes);
// Pinned memory: the host's address to the device's; 0: none.
uint64_t device_of(const void* host_address);
// Is this pinned memory, by the host's address?
bool is_pinned(const void* host_address, size_t bytes);

size_t live_pieces();

// Tells what is wrong and aborts: what a GPU would do silently, or only at times.
[[noreturn]] void die(const char* what);

}  // namespace doubles
