// Settings that ranks tell each other, and the values on which they agree.
#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/settings.h"

namespace omnihvd {

std::string pack_agreed(const Settings& settings) {
  BytesWriter out;
  for (const Setting& setting : all_settings())
    if (setting.agreed != Agreed::own) out.text(setting.show(settings));
  return out.bytes();
}

std::vector<std::string> agree_on_settings(const std::vector<std::string>& packed,
                                           const std::vector<std::string>& ranks,
                                           Settings* settings) {
  std::vector<BytesReader> all(packed.begin(), packed.end());
  std::vector<std::string> differences;
  for (const Setting& setting : all_settings()) {
    if (setting.agreed == Agreed::own) continue;
    std::vector<std::string> values;
    for (BytesReader& one : all) values.push_back(one.text());
    size_t used = 0, other = 0;
    const auto strictness = [&](size_t rank) {
      return std::find(setting.words.begin(), setting.words.end(), values[rank]);
    };
    for (size_t rank = 1; rank < all.size() && setting.agreed == Agreed::strictest; ++rank)
      if (strictness(rank) > strictness(used)) used = rank;
    try {
      setting.parse(*settings, values[used]);
    } catch (const std::exception&) {
      throw Error("malformed description of a group: impossible " + setting.name);
    }
    while (other < all.size() && values[other] == values[used]) ++other;
    if (other == all.size() || setting.agreed == Agreed::rank0_silently) continue;
    const auto where = [&](size_t rank) {
      return (values[rank].empty() ? "none" : values[rank]) + " on " + ranks[rank];
    };
    if (setting.agreed == Agreed::same)
      throw Error(setting.name + " is " + where(other) + ", and " + where(used) +
                  ": set it alike everywhere");
    differences.push_back(setting.name + " is " + where(other) + ", and " + where(used) +
                          ", which all ranks use: set it alike everywhere");
  }
  return differences;
}

}  // namespace omnihvd
