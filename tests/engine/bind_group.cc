// _engine_tests.session.DedicatedGroup: an aggregator's part of a group, driven by a test.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/group_info.h"
#include "engine/group_stream.h"
#include "memory.h"

namespace py = pybind11;

namespace omnihvd {
namespace {

class DedicatedGroup : Transport::Handler {
 public:
  explicit DedicatedGroup(const std::vector<py::bytes>& ranks)
      : transport_(make_memory_transport()) {
    transport_->set_handler(this);
    const auto info = std::make_shared<GroupInfo>();
    info->workers = uint32_t(ranks.size());
    for (const py::bytes& address : ranks) info->nodes.push_back({"host", {std::string(address)}});
    info->nodes.push_back({"host", {transport_->address()}});
    info->take_seats();
    group_ = std::make_unique<GroupStream>(info, info->workers, 0, *transport_,
                                           [](const std::string&) {});
  }
  ~DedicatedGroup() override { group_->leave(); }

  GroupStream& group() const { return *group_; }

 private:
  void on_message(const uint8_t*, size_t) override {}
  void on_sent(uint64_t cookie) override { GroupStream::on_sent(cookie); }
  void on_peer_failed(PeerId, const std::string&) override {}

  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<GroupStream> group_;
};

}  // namespace

void bind_group(py::module_ m) {
  py::class_<DedicatedGroup>(m, "DedicatedGroup")
      .def(py::init<const std::vector<py::bytes>&>(), py::arg("ranks"),
           "ranks: the addresses of their memory transports.")
      .def("fail",
           [](DedicatedGroup& self, const std::string& why) { self.group().fail(why, true); })
      .def("all_listen", [](DedicatedGroup& self) { self.group().all_listen(); })
      .def_property_readonly("deserted",
                             [](DedicatedGroup& self) { return self.group().deserted(); });
}

}  // namespace omnihvd
