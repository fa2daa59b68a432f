#include "engine/setting_values.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "protocol/seats.h"

namespace omnihvd {

void refuse() { throw Error("not allowed"); }

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

bool boolean(const std::string& text) {
  const std::string value = lower(text);
  if (value == "1" || value == "on" || value == "true") return true;
  if (value == "0" || value == "off" || value == "false") return false;
  refuse();
}

uint64_t integer(const std::string& value, uint64_t least, uint64_t most) {
  if (value.empty() || value.size() > 19 ||
      value.find_first_not_of("0123456789") != std::string::npos)
    refuse();
  const uint64_t number = std::stoull(value);
  if (number < least || number > most) refuse();
  return number;
}

double seconds(const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (end == value.c_str() || *end || !(number >= 0 && number < 1e9)) refuse();
  return number;
}

std::vector<std::string> addresses(const std::string& value) {
  std::vector<std::string> list;
  std::istringstream in(value);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t colon = item.rfind(':');
    if (colon == std::string::npos || colon == 0) refuse();
    integer(item.substr(colon + 1), 1, 65535);
    list.push_back(item);
  }
  return list;
}

std::string ipv4_address(const std::string& value) {
  if (value.empty()) return value;
  if (addresses(value).size() != 1) refuse();
  const std::string host = value.substr(0, value.rfind(':'));
  in_addr at{};
  if (inet_pton(AF_INET, host.c_str(), &at) != 1)
    throw Error(host + " is no IPv4 address: in-network aggregation supports IPv4 only");
  return value;
}

// Whether the levels join all ranks is known only after bootstrap.
std::string levels(const std::string& value) {
  fans_of(lower(value), 1, 0);
  return lower(value);
}

static std::string file_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) throw Error("the file cannot be read");
  std::string text = content.str();
  while (!text.empty() && std::strchr("\r\n \t", text.back())) text.pop_back();
  return text;
}

// Rejects a file that any user of the host could read, and one that can be read only once. A group
// may read it: clusters hand out such files.
static void check_permissions(const std::string& path) {
  struct stat file;
  if (::stat(path.c_str(), &file) != 0) return;
  if (!S_ISREG(file.st_mode)) throw Error("a secret is read more than once: name a regular file");
  if (file.st_mode & (S_IROTH | S_IWOTH))
    throw Error("every user of this host can read the file or write to it: chmod 600 " + path);
}

std::string secret(const std::string& text) {
  if (text.size() < 16) throw Error("a secret needs at least 16 characters");
  return text;
}

std::string secret_of_file(const std::string& path) {
  check_permissions(path);
  return secret(file_content(path));
}

std::string metrics(const std::string& value) {
  if (value.find(':') == std::string::npos)
    integer(value, 1, 65535);
  else if (addresses(value).size() != 1)
    refuse();
  return value;
}

}  // namespace omnihvd
