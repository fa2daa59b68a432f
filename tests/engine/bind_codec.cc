// _engine_tests.codec: codecs block by block, in each implementation.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "communicator/coded_buffer.h"
#include "numeric/codec.h"
#include "numeric/lossless.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

using Block = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Has the engine's constructors, and is made from the engine's Codec.
struct TestCodec : Codec {
  explicit TestCodec(const Codec& codec) : Codec(codec) {}
};

TestCodec made(const py::args& args, const py::kwargs& kwargs) {
  if (args.size() == 1 && py::isinstance<Codec>(args[0])) return TestCodec(args[0].cast<Codec>());
  const py::object engines = py::module_::import("omnihvd._engine").attr("codec").attr("Codec");
  return TestCodec(engines(*args, **kwargs).cast<Codec>());
}

const CodecOps& ops_named(const std::string& implementation) {
  const CodecOps* const ops =
      implementation.empty() ? &codec_ops() : codec_ops_named(implementation);
  if (!ops) throw py::value_error("not on this CPU: " + implementation);
  return *ops;
}

py::object encode_lossless(const py::buffer& block, const std::string& implementation) {
  const py::buffer_info info = block.request();
  const size_t element = size_t(info.itemsize), n = size_t(info.size);
  const std::unique_ptr<uint8_t[]> out(new uint8_t[n * element]);  // of its size, for sanitizers
  const size_t bytes = ops_named(implementation).encode_lossless(element, info.ptr, n, out.get());
  if (bytes == 0) return py::none();
  return py::bytes(reinterpret_cast<const char*>(out.get()), bytes);
}

// None if no encoder writes this.
py::object decode_lossless(const py::bytes& code, size_t n, size_t element,
                           const std::string& implementation) {
  const std::string view = code;
  const std::unique_ptr<uint8_t[]> in(new uint8_t[view.size()]), out(new uint8_t[n * element]);
  std::copy(view.begin(), view.end(), in.get());
  if (lossless_bytes(in.get(), view.size(), n, element) != view.size() ||
      !ops_named(implementation).decode_lossless(element, in.get(), n, out.get()))
    return py::none();
  return py::bytes(reinterpret_cast<const char*>(out.get()), n * element);
}

// Encodes a tensor block by block. Returns the bytes, and the seconds to encode and to decode, for
// benchmarks.
py::tuple measure_lossless(const py::buffer& tensor, size_t block,
                           const std::string& implementation) {
  using Clock = std::chrono::steady_clock;
  const py::buffer_info info = tensor.request();
  const size_t element = size_t(info.itemsize), size = size_t(info.size);
  const auto* const from = static_cast<const uint8_t*>(info.ptr);
  const CodecOps& ops = ops_named(implementation);
  std::vector<uint8_t> codes(size * element), back(block * element);
  std::vector<size_t> bytes;
  size_t total = 0;
  const auto begin = Clock::now();
  for (size_t at = 0; at < size; at += block) {
    const size_t n = std::min(block, size - at);
    bytes.push_back(ops.encode_lossless(element, from + at * element, n, &codes[at * element]));
    total += bytes.back() ? bytes.back() : n * element;
  }
  const auto encoded = Clock::now();
  bool same = true;
  for (size_t at = 0; at < size; at += block)
    if (bytes[at / block])
      same &= ops.decode_lossless(element, &codes[at * element], std::min(block, size - at),
                                  back.data());
  const auto end = Clock::now();
  if (!same) throw std::runtime_error("what was encoded is refused");
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  return py::make_tuple(total, seconds(encoded - begin), seconds(end - encoded));
}

Coding coding_of(const Codec& codec, bool sums) {
  return sums ? sum_coding(codec) : contribution_coding(codec);
}

py::object encode(const TestCodec& codec, const Block& block, uint64_t key, bool sums,
                  const std::string& implementation) {
  const Coding coding = coding_of(codec, sums);
  const size_t n = size_t(block.size()), bytes = coded_bytes(coding, n);
  const std::unique_ptr<uint8_t[]> out(new uint8_t[bytes]);  // of its size, for sanitizers
  if (!ops_named(implementation).encode(coding, key, block.data(), n, out.get())) return py::none();
  return py::bytes(reinterpret_cast<const char*>(out.get()), bytes);
}

Block decode(const TestCodec& codec, const py::bytes& coded, size_t n, bool sums,
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

}  // namespace

void bind_codec(py::module_ m) {
  py::class_<TestCodec, Codec>(m, "Codec")
      .def(py::init(&made))
      .def("__bool__", [](const TestCodec& codec) { return bool(codec); })
      .def_property_readonly("name", [](const TestCodec& codec) { return name_of(codec); })
      .def_readonly("seed", &TestCodec::seed)
      .def(
          "coded_bytes",
          [](const TestCodec& codec, size_t n, bool sums) {
            return coded_bytes(coding_of(codec, sums), n);
          },
          py::arg("n"), py::arg("sums") = false)
      .def("encode", &encode, py::arg("block"), py::arg("key") = 0, py::arg("sums") = false,
           py::arg("implementation") = "")
      .def("decode", &decode, py::arg("coded"), py::arg("n"), py::arg("sums") = false,
           py::arg("implementation") = "");
  m.def("encode_lossless", &encode_lossless, py::arg("block"), py::arg("implementation") = "");
  m.def("decode_lossless", &decode_lossless, py::arg("code"), py::arg("n"), py::arg("element"),
        py::arg("implementation") = "");
  m.def("measure_lossless", &measure_lossless, py::arg("tensor"), py::arg("block") = 256,
        py::arg("implementation") = "");
  m.def(
      "begins_sum",
      [](const std::string& data, int ranks) {
        return CodedBuffer::begins_sum(data.data(), data.size(), ranks);
      },
      py::arg("data"), py::arg("ranks"));
  m.def("block_key", &block_key, py::arg("seed"), py::arg("who"), py::arg("block"));
  m.def("implementations", [] {
    py::list names;
    for (const char* name : {"portable", "avx2", "avx512"})
      if (codec_ops_named(name)) names.append(name);
    return names;
  });
}

}  // namespace omnihvd
