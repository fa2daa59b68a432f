// The frames of a message (protocol/frame_reader.cc) from any bytes: refused by an Error, or they
// keep the layout's rules, come back the same when they are written and read again, and can be
// kept.
#include "frames.h"
#include "protocol/router.h"

using namespace omnihvd;
using namespace omnihvd::fuzz;

FUZZ(in) {
  const Shape shape = drawn_shape(in);
  const Layout layout(shape);
  const auto aggregator = uint32_t(in.between(0, shape.aggregators - 1));
  const Kind kind = in.flag() ? Kind::result : Kind::contribution;
  const bool names = in.flag();
  std::vector<uint64_t> positions;
  const MessageReader::Named named = [&](uint32_t slot, uint32_t round) {
    positions.clear();
    const uint64_t end = std::min<uint64_t>(layout.positions(slot), shape.window);
    for (uint64_t at = round % 3; at < end; at += 1 + round % 2) positions.push_back(at);
    return Positions{positions.data(), positions.size()};
  };
  Header header;
  header.kind = kind;
  Message message;
  message.begin(header, nullptr);
  Bytes given = gathered(message);
  const Bytes rest = in.rest();
  given.insert(given.end(), rest.begin(), rest.end());
  given[40] = 0xFF;  // so many frames, at most
  given.shrink_to_fit();
  accepted([&] {
    MessageReader reader(given.data(), given.size());
    Frame frame;
    while (reader.next(layout, aggregator, names ? named : nullptr, &frame)) {
      MUST(frame.slot < shape.slots && frame.blocks.size() <= shape.window);
      const uint64_t end = layout.positions(frame.slot);
      for (size_t i = 0; i < frame.blocks.size(); ++i)
        MUST(frame.blocks[i].position < end &&
             (i == 0 || frame.blocks[i].position > frame.blocks[i - 1].position));
      for (size_t i = 0; i < frame.ahead.size(); ++i)
        MUST(frame.ahead[i] < end && (i == 0 || frame.ahead[i] > frame.ahead[i - 1]));
      must_come_back(OwnFrame(frame, layout, aggregator), layout, aggregator, kind,
                     names ? named : nullptr);
      MUST(Router::copy(frame, layout, aggregator)->blocks.size() == frame.blocks.size());
    }
  });
}
