// Descriptions of nodes, groups and settings (engine/group_info.h) from any bytes: refused by an
// Error, or the same when they are packed and unpacked again.
#include "engine/group_info.h"
#include "input.h"

using namespace omnihvd;

static GroupInfo drawn_group(fuzz::Input& in) {
  GroupInfo info;
  info.id = in.number<uint64_t>();
  info.workers = uint32_t(in.between(1, 7));
  info.settings.block_size = uint32_t(in.between(8, 65536));
  info.settings.timeout_s = double(in.number<uint16_t>()) / 8;
  info.settings.encrypt = in.flag();
  const uint64_t nodes = info.workers + in.between(0, 2);
  for (uint64_t i = 0; i < nodes; ++i)
    info.nodes.push_back({std::to_string(i), {std::string(in.between(0, 9), 'a')}});
  info.take_seats();
  return info;
}

FUZZ(in) {
  const uint8_t how = in.number<uint8_t>() % 3;
  if (how == 0) {
    const std::string given = in.text();
    std::string once;
    if (fuzz::accepted([&] { once = Node::unpack(given).pack(); })) MUST(once == given);
    return;
  }
  std::string given = how == 1 ? in.text() : drawn_group(in).pack();
  if (how == 2) {
    MUST(GroupInfo::unpack(given).pack() == given);
    while (!in.empty()) given[in.number<uint16_t>() % given.size()] = char(in.number<uint8_t>());
  }
  std::string once;
  if (!fuzz::accepted([&] { once = GroupInfo::unpack(given).pack(); })) return;
  const GroupInfo info = GroupInfo::unpack(once);
  MUST(info.workers >= 1 && info.workers <= info.nodes.size() && info.pack() == once);
}
