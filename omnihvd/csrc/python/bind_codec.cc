// omnihvd._engine.codec: block codecs, and the headers of coded tensors.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <vector>

#include "communicator/coded_buffer.h"
#include "numeric/codec.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

Codec codec_named(const std::string& name, uint8_t bits, uint32_t seed) {
  for (int kind = 0; kind <= int(CodecKind::lossless); ++kind) {
    const Codec codec{CodecKind(kind), bits, false, seed};
    if (name == name_of({CodecKind(kind), 0, false, 0}) && is_valid(codec)) return codec;
  }
  throw py::value_error("no such codec: " + name + " of " + std::to_string(bits) + " bits");
}

// Replaces float32 at an address, in place, by what the other ranks will decode.
void round_trip(const Codec& codec, uintptr_t data, uint64_t count, uint32_t block_size,
                uint32_t rank) {
  const Coding coding = contribution_coding(codec);
  py::gil_scoped_release release;
  std::vector<uint8_t> coded(coded_bytes(coding, block_size));
  auto* const floats = reinterpret_cast<float*>(data);
  for (uint64_t block = 0, at = 0; at < count; ++block, at += block_size) {
    const size_t n = std::min<uint64_t>(block_size, count - at);
    if (codec_ops().encode(coding, block_key(codec.seed, rank, block), floats + at, n,
                           coded.data()))
      codec_ops().decode(coding, coded.data(), n, floats + at);
  }
}

py::bytes header(const Codec& codec, uint32_t header_bytes, uint64_t count, bool summed) {
  const CodedHeader made = coded_header(codec, header_bytes, count, summed);
  return py::bytes(reinterpret_cast<const char*>(&made), sizeof made);
}

}  // namespace

void bind_codec(py::module_ m) {
  m.attr("HEADER_BYTES") = sizeof(CodedHeader);
  py::class_<Codec>(m, "Codec")
      .def(py::init<>())  // no codec
      .def(py::init(&codec_named), py::arg("kind"), py::arg("bits") = 0, py::arg("seed") = 0)
      .def(
          "coding",  // (rule, bits per element), as kernels have them
          [](const Codec& codec, bool sums) {
            const Coding coding = sums ? sum_coding(codec) : contribution_coding(codec);
            return py::make_tuple(int(coding.quantizer), int(coding.bits));
          },
          py::arg("sums") = false)
      .def("round_trip", &round_trip, py::arg("data"), py::arg("count"), py::arg("block_size"),
           py::arg("rank"))
      .def("header", &header, py::arg("header_bytes"), py::arg("count"), py::arg("summed") = false);
}

}  // namespace omnihvd
