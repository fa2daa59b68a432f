// Tests block_ops.h: every operation, over the blocks of a tensor in turn.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "numeric/block_ops_set.h"
#include "numeric/cpu.h"
#include "python/sums.h"

namespace omnihvd {
namespace {

namespace py = pybind11;

// The bytes of any C-contiguous buffer.
template <class Byte>
struct Bytes {
  py::buffer_info info;
  Byte* data;
  size_t size;

  Bytes(const py::buffer& buffer, bool writable) : info(buffer.request(writable)) {
    if (!PyBuffer_IsContiguous(info.view(), 'C')) throw py::value_error("not C-contiguous");
    data = static_cast<Byte*>(info.ptr);
    size = static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize);
  }
};
struct Input : Bytes<const uint8_t> {
  explicit Input(const py::buffer& buffer) : Bytes(buffer, false) {}
};
struct Output : Bytes<uint8_t> {
  explicit Output(const py::buffer& buffer) : Bytes(buffer, true) {}
};

// Null if this CPU lacks it.
const BlockOps* block_ops_named(DType dtype, const std::string& implementation) {
#if defined(__x86_64__)
  if (implementation == "avx2" && cpu_has_avx2()) return &avx2_block_ops.of[int(dtype)];
#endif
  return implementation == "portable" ? &portable_block_ops.of[int(dtype)] : nullptr;
}

class Ops {
 public:
  Ops(const std::string& dtype, const std::string& implementation) : dtype_(dtype_named(dtype)) {
    ops_ = implementation.empty() ? &block_ops(dtype_) : block_ops_named(dtype_, implementation);
    if (!ops_) throw py::value_error("this CPU has no " + implementation);
  }

  py::tuple inspect(const py::buffer& tensor, size_t block_size) const {
    const Input in(tensor);
    size_t nonzero = 0, negative_zero = 0;
    each_block(elements(in.size), block_size, [&](size_t at, size_t n) {
      const BlockOps::Content content = ops_->inspect(in.data + at * size(), n);
      nonzero += content.nonzero;
      negative_zero += !content.nonzero && content.negative_zero;
    });
    return py::make_tuple(nonzero, negative_zero);
  }

  size_t count_nonzero(const py::buffer& tensor, size_t block_size) const {
    const Input in(tensor);
    size_t count = 0;
    each_block(elements(in.size), block_size, [&](size_t at, size_t n) {
      count += ops_->count_nonzero(in.data + at * size(), n);
    });
    return count;
  }

  size_t pack(const py::buffer& tensor, const py::buffer& packed, size_t block_size) const {
    const Input in(tensor);
    const Output out(packed);
    size_t written = 0;
    each_block(elements(in.size), block_size, [&](size_t at, size_t n) {
      require(out.size - written >= bitmap_bytes(n) + n * size(), "packed may not hold a block");
      written += ops_->pack(in.data + at * size(), n, out.data + written);
    });
    return written;
  }

  void unpack(const py::buffer& packed, const py::buffer& tensor, size_t block_size) const {
    const Output out(tensor);
    each_packed(packed, elements(out.size), block_size, [&](const uint8_t* p, size_t at, size_t n) {
      ops_->unpack(p, n, out.data + at * size());
    });
  }

  void store(const py::buffer& sums, const py::buffer& tensor, size_t block_size) const {
    accumulate(ops_->store, sums, tensor, block_size);
  }
  void add(const py::buffer& sums, const py::buffer& tensor, size_t block_size) const {
    accumulate(ops_->add, sums, tensor, block_size);
  }
  void store_packed(const py::buffer& sums, const py::buffer& packed, size_t block_size) const {
    accumulate_packed(ops_->store_packed, sums, packed, block_size);
  }
  void add_packed(const py::buffer& sums, const py::buffer& packed, size_t block_size) const {
    accumulate_packed(ops_->add_packed, sums, packed, block_size);
  }

  // The same for packed blocks that are listed first.
  void unlist(const py::buffer& packed, const py::buffer& tensor, size_t block_size) const {
    const Output out(tensor);
    each_listed(packed, elements(out.size), block_size,
                [&](const uint32_t* offsets, const uint8_t* p, size_t count, size_t at, size_t n) {
                  ops_->unlist(offsets, p, count, out.data + at * size(), n);
                });
  }
  void store_listed(const py::buffer& sums, const py::buffer& packed, size_t block_size) const {
    const Output out(sums);
    each_listed(packed, sum_elements(out.size), block_size,
                [&](const uint32_t* offsets, const uint8_t* p, size_t count, size_t at, size_t n) {
                  ops_->store_listed(out.data + at * sum_size(), offsets, p, count, n);
                });
  }
  void add_listed(const py::buffer& sums, const py::buffer& packed, size_t block_size) const {
    const Output out(sums);
    each_listed(packed, sum_elements(out.size), block_size,
                [&](const uint32_t* offsets, const uint8_t* p, size_t count, size_t at, size_t) {
                  ops_->add_listed(out.data + at * sum_size(), offsets, p, count);
                });
  }

  void finish(const py::buffer& tensor, const py::buffer& sums, size_t block_size) const {
    const Input in(sums);
    const Output out(tensor);
    const size_t n = sum_elements(in.size);
    require(out.size >= n * size(), "tensor is too short");
    each_block(n, block_size, [&](size_t at, size_t count) {
      ops_->finish(out.data + at * size(), in.data + at * sum_size(), count);
    });
  }

 private:
  DType dtype_;
  const BlockOps* ops_;

  size_t size() const { return size_of(dtype_); }
  size_t sum_size() const { return accumulator_size_of(dtype_); }

  static void require(bool condition, const char* message) {
    if (!condition) throw py::value_error(message);
  }
  size_t elements(size_t bytes) const {
    require(bytes % size() == 0, "not a whole number of elements");
    return bytes / size();
  }
  size_t sum_elements(size_t bytes) const {
    require(bytes % sum_size() == 0, "not a whole number of accumulators");
    return bytes / sum_size();
  }

  // Block size 0: the tensor is one block, even if it has 0 elements.
  template <class Body>
  static void each_block(size_t elements, size_t block_size, Body body) {
    if (block_size == 0) return body(0, elements);
    for (size_t at = 0; at < elements; at += block_size) {
      body(at, elements - at < block_size ? elements - at : block_size);
    }
  }

  template <class Body>
  void each_packed(const py::buffer& packed, size_t elements, size_t block_size, Body body) const {
    const Input in(packed);
    size_t read = 0;
    each_block(elements, block_size, [&](size_t at, size_t n) {
      require(in.size - read >= bitmap_bytes(n), "packed ends inside a bitmap");
      const size_t bytes = bitmap_bytes(n) + packed_count(in.data + read, n) * size();
      require(in.size - read >= bytes, "packed ends inside a block");
      body(in.data + read, at, n);
      read += bytes;
    });
    require(read == in.size, "packed goes on after the last block");
  }

  // `body` gets offsets in memory of exactly their size, so that a sanitizer sees reads beyond it.
  template <class Body>
  void each_listed(const py::buffer& packed, size_t elements, size_t block_size, Body body) const {
    each_packed(packed, elements, block_size, [&](const uint8_t* p, size_t at, size_t n) {
      const std::unique_ptr<uint32_t[]> offsets(new uint32_t[packed_count(p, n)]);
      size_t count = 0;
      for (size_t i = 0; i < n; ++i)
        if (p[i / 8] >> (i % 8) & 1) offsets[count++] = uint32_t(i);
      body(offsets.get(), p + bitmap_bytes(n), count, at, n);
    });
  }

  void accumulate(void (*op)(void*, const void*, size_t), const py::buffer& sums,
                  const py::buffer& tensor, size_t block_size) const {
    const Input in(tensor);
    const Output out(sums);
    const size_t n = elements(in.size);
    require(sum_elements(out.size) == n, "as many accumulators as elements are needed");
    each_block(n, block_size, [&](size_t at, size_t count) {
      op(out.data + at * sum_size(), in.data + at * size(), count);
    });
  }

  void accumulate_packed(void (*op)(void*, const uint8_t*, size_t), const py::buffer& sums,
                         const py::buffer& packed, size_t block_size) const {
    const Output out(sums);
    each_packed(
        packed, sum_elements(out.size), block_size,
        [&](const uint8_t* p, size_t at, size_t n) { op(out.data + at * sum_size(), p, n); });
  }
};

}  // namespace

void bind_block_ops(py::module_ m) {
  using py::arg;
  m.def(
      "block_ops_implementation",
      [] {
        const bool portable = &block_ops(DType::f32) == block_ops_named(DType::f32, "portable");
        return portable ? "portable" : "avx2";
      },
      "Name of the implementation that the engine uses on this CPU.");
  m.def(
      "block_ops_implementations",
      [] {
        py::list names;
        for (const char* name : {"portable", "avx2"}) {
          if (block_ops_named(DType::f32, name)) names.append(name);
        }
        return names;
      },
      "Names of the implementations that this CPU can run.");
  m.def(
      "packed_count",
      [](const py::buffer& packed, size_t n) {
        const Input in(packed);
        if (in.size < bitmap_bytes(n)) throw py::value_error("shorter than its bitmap");
        return packed_count(in.data, n);
      },
      arg("packed"), arg("n"), "Number of elements that follow the bitmap of n bits.");

  py::class_<Ops>(m, "BlockOps", R"(Operations on the blocks of a tensor.

Arguments are C-contiguous buffers, taken as bytes at any alignment. Each operation goes over the
tensor block by block: blocks of `block_size` elements, the last one may be short; 0 makes the
whole tensor one block. Packed blocks lie back to back. ValueError where sizes do not match.)")
      .def(py::init<const std::string&, const std::string&>(), arg("dtype"),
           arg("implementation") = "")
      .def("inspect", &Ops::inspect, arg("tensor"), arg("block_size") = 0,
           "(number of non-zero blocks, number of zero blocks with some -0.0).")
      .def("count_nonzero", &Ops::count_nonzero, arg("tensor"), arg("block_size") = 0)
      .def("pack", &Ops::pack, arg("tensor"), arg("packed"), arg("block_size") = 0,
           "Bytes written to `packed`, which must have room for all elements.")
      .def("unpack", &Ops::unpack, arg("packed"), arg("tensor"), arg("block_size") = 0)
      .def("store", &Ops::store, arg("sums"), arg("tensor"), arg("block_size") = 0)
      .def("add", &Ops::add, arg("sums"), arg("tensor"), arg("block_size") = 0)
      .def("store_packed", &Ops::store_packed, arg("sums"), arg("packed"), arg("block_size") = 0)
      .def("add_packed", &Ops::add_packed, arg("sums"), arg("packed"), arg("block_size") = 0)
      .def("unlist", &Ops::unlist, arg("packed"), arg("tensor"), arg("block_size") = 0)
      .def("store_listed", &Ops::store_listed, arg("sums"), arg("packed"), arg("block_size") = 0)
      .def("add_listed", &Ops::add_listed, arg("sums"), arg("packed"), arg("block_size") = 0)
      .def("finish", &Ops::finish, arg("tensor"), arg("sums"), arg("block_size") = 0,
           "May be in place.");
}

}  // namespace omnihvd
