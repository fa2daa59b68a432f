// The words that settings use for enumerations. A value and its word stand side by side, so that a
// new value does not shift any other word.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/plugin.h"
#include "engine/settings.h"
#include "transport/registry.h"

namespace omnihvd {

template <typename T>
using Names = std::vector<std::pair<T, std::string>>;

inline const Names<Way> kWayWords = {{Way::automatic, "auto"},    {Way::stream, "stream"},
                                     {Way::shared, "shared"},     {Way::unite, "union"},
                                     {Way::original, "original"}, {Way::coded, "coded"}};
inline Names<Way> way_words() {
  Names<Way> words = kWayWords;
  if (!plugin_way().empty()) words.emplace_back(Way::plugin, plugin_way());
  return words;
}
inline const Names<Way> kGpuWayWords = {
    {Way::automatic, "auto"}, {Way::unite, "union"}, {Way::original, "original"}};
inline const Names<ArithmeticKind> kArithmeticWords = {{ArithmeticKind::floats, "float"},
                                                       {ArithmeticKind::integers, "integer"},
                                                       {ArithmeticKind::switchml, "switchml"},
                                                       {ArithmeticKind::fpisa, "fpisa"},
                                                       {ArithmeticKind::fpisa_a, "fpisa-a"}};
inline const Names<Hierarchy> kHierarchyWords = {
    {Hierarchy::automatic, "auto"}, {Hierarchy::on, "on"}, {Hierarchy::off, "off"}};
inline const Names<CompressionFirst> kCompressFirstWords = {{CompressionFirst::automatic, "auto"},
                                                            {CompressionFirst::on, "1"},
                                                            {CompressionFirst::off, "0"}};
inline Names<std::string> transport_words() {
  Names<std::string> words;
  for (const std::string& name : transport_names()) words.emplace_back(name, name);
  return words;
}
// OMNIHVD_LOG=warning shows notices, too; there is no word for warnings alone.
inline const Names<LogLevel> kLogWords = {{LogLevel::debug, "debug"},
                                          {LogLevel::info, "info"},
                                          {LogLevel::notice, "warning"},
                                          {LogLevel::error, "error"},
                                          {LogLevel::off, "off"}};

}  // namespace omnihvd
