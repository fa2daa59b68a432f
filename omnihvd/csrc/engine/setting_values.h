// Parses the text of a setting. Pure, except for secrets, which may lie in a file. Each function
// throws Error if the text is not allowed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace omnihvd {

[[noreturn]] void refuse();
std::string lower(std::string text);  // for fixed sets of words: case does not matter

bool boolean(const std::string& text);
uint64_t integer(const std::string& value, uint64_t least, uint64_t most);
double seconds(const std::string& value);
std::vector<std::string> addresses(const std::string& value);  // host:port, separated by commas
std::string ipv4_address(const std::string& value);            // one IPv4 address and port, or none
std::string levels(const std::string& value);
std::string secret(const std::string& text);
std::string secret_of_file(const std::string& path);
std::string metrics(const std::string& value);  // a port, or an address and port

}  // namespace omnihvd
