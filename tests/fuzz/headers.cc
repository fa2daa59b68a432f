// Headers and shapes of messages from any bytes (protocol/wire.h): refused by an Error, or the same
// when they are written and read again.
#include "frames.h"

using namespace omnihvd;
using namespace omnihvd::fuzz;

FUZZ(in) {
  Bytes given = in.flag() ? in.rest() : Bytes();
  if (given.empty()) {  // a possible one
    const Shape shape = drawn_shape(in);
    Header header;
    header.kind = Kind(in.between(1, 4));
    Message message;
    message.begin(header, &shape);
    given = gathered(message);
    while (!in.empty()) given[in.number<uint8_t>() % given.size()] = in.number<uint8_t>();
  }
  accepted([&] {
    const Header header = read_header(given.data(), given.size());
    Shape shape;
    if (header.has_shape) shape = MessageReader(given.data(), given.size()).shape();
    Message message;
    message.begin(header, header.has_shape ? &shape : nullptr);
    const Bytes sent = gathered(message, header.number);
    MessageReader reader(sent.data(), sent.size());
    const Header& again = reader.header();
    MUST(again.kind == header.kind && again.stream == header.stream && again.from == header.from);
    MUST(again.group == header.group && again.number == header.number);
    MUST(again.sequence == header.sequence && again.has_shape == header.has_shape);
    if (!header.has_shape) return;
    MUST(reader.shape() == shape);
    const Layout layout(shape);
    for (const uint64_t block : {uint64_t{0}, layout.blocks() / 2, layout.blocks() - 1}) {
      if (block >= layout.blocks()) continue;
      const Layout::Place place = layout.place_of(block);
      MUST(layout.block_at(place.aggregator, place.slot, place.position) == block);
      MUST(place.position < layout.positions(place.slot) && layout.elements_of(block) > 0);
    }
  });
}
