// omnihvd._engine.codec: block codecs, and the headers of tensors under one.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "protocol/codec.h"
#include "sums/coded_buffer.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

using Block = py::array_t<float, py::array::c_style | py::array::forcecast>;

Codec codec_named(const std::string& name, uint8_t bits, uint32_t seed) {
  for (int kind = 0; kind <= int(CodecKind::integer); ++kind) {
    const Codec codec{CodecKind(kind), bits, false, seed};
    if (name == name_of({CodecKind(kind), 0, false, 0}) && is_valid(codec)) return codec;
  }
  throw py::value_error("no such codec: " + name + " of " + std::to_string(bits) + " bits");
}

const CodecOps& ops_named(const std::string& implementation) {
  const CodecOps* const ops =
      implementation.empty() ? &codec_ops() : codec_ops_named(implementation);
  if (!ops) throw py::value_error("not on this CPU: " + implementation);
  return *ops;
}

Coding coding_of(const Codec& codec, bool sums) {
  return sums ? sum_coding(codec) : contribution_coding(codec);
}

py::object encode(const Codec& codec, const Block& block, uint64_t key, bool sums,
                  const std::string& implementation) {
  const Coding coding = coding_of(codec, sums);
  const size_t n = size_t(block.size()), bytes = coded_bytes(coding, n);
  const std::unique_ptr<uint8_t[]> out(new uint8_t[bytes]);  // of its size, for sanitizers
  if (!ops_named(implementation).encode(coding, key, block.data(), n, out.get())) return py::none();
  return py::bytes(reinterpret_cast<const char*>(out.get()), bytes);
}

Block decode(const Codec& codec, const py::bytes& coded, size_t n, bool sums,
             const std::string& implementation) {
  const Coding coding = coding_of(codec, sums);
  const std::string view = coded;
  if (view.size() != coded_bytes(coding, n)) throw py::value_error("of another size");
  const std::unique_ptr<uint8_t[]> in(new uint8_t[view.size()]);
  std::copy(view.begin(), view.end(), in.get());
  if (!is_coded(coding, in.get())) throw py::value_error("no encoder writes this");
  Block block(static_cast<py::ssize_t>(n));
  ops_named(implementation).decode(coding, in.get(), n, block.mutable_data());
  return block;
}

// In place: what the others are going to make of float32 at an address.
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
      .def(py::init<>())  // none
      .def(py::init(&codec_named), py::arg("kind"), py::arg("bits") = 0, py::arg("seed") = 0)
      .def("__bool__", [](const Codec& codec) { return bool(codec); })
      .def_property_readonly("name", [](const Codec& codec) { return name_of(codec); })
      .def_readonly("seed", &Codec::seed)
      .def(
          "coded_bytes",
          [](const Codec& codec, size_t n, bool sums) {
            return coded_bytes(coding_of(codec, sums), n);
          },
          py::arg("n"), py::arg("sums") = false)
      .def(
          "coding",  // (rule, bits of an element), as kernels have them
          [](const Codec& codec, bool sums) {
            const Coding coding = coding_of(codec, sums);
            return py::make_tuple(int(coding.rule), int(coding.bits));
          },
          py::arg("sums") = false)
      .def("encode", &encode, py::arg("block"), py::arg("key") = 0, py::arg("sums") = false,
           py::arg("implementation") = "")
      .def("decode", &decode, py::arg("coded"), py::arg("n"), py::arg("sums") = false,
           py::arg("implementation") = "")
      .def("round_trip", &round_trip, py::arg("data"), py::arg("count"), py::arg("block_size"),
           py::arg("rank"))
      .def("header", &header, py::arg("header_bytes"), py::arg("count"), py::arg("summed") = false);
  m.def("block_key", &block_key, py::arg("seed"), py::arg("who"), py::arg("block"));
  m.def("implementations", [] {
    py::list names;
    for (const char* name : {"portable", "avx2", "avx512"})
      if (codec_ops_named(name)) names.append(name);
    return names;
  });
}

}  // namespace omnihvd
