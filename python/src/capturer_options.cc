// Makes a Capturer, and its transport, of Python's arguments.
#include <moetap/error.h>
#include <moetap/transport.h>

#include <fmt/format.h>

#include <optional>

#include "python/src/capturer.h"
#include "python/src/words.h"

namespace moetap::python {
namespace {

enum class Way : std::uint8_t { device, shm, capture_only };

}  // namespace
}  // namespace moetap::python

MOETAP_WORDS(moetap::python::Way, "transport", "'device', 'shm', 'capture_only'",
             {{"device", moetap::python::Way::device},
              {"shm", moetap::python::Way::shm},
              {"capture_only", moetap::python::Way::capture_only}});

MOETAP_WORDS(moetap::HostCache, "host_cache", "'scheduler', 'per_request'",
             {{"scheduler", moetap::HostCache::scheduler},
              {"per_request", moetap::HostCache::per_request}});

MOETAP_WORDS(moetap::OnFull, "on_full", "'wait', 'drop'",
             {{"wait", moetap::OnFull::wait}, {"drop", moetap::OnFull::drop}});

namespace moetap::python {
namespace {

template <class T>
using Maybe = std::optional<T>;

// Options that only one transport has; given to another, they are an error.
struct DeviceOptions {
  Maybe<Choice<HostCache>> host_cache;
  Maybe<int> staging_depth;
  Maybe<Choice<OnFull>> on_full;
  Maybe<Choice<Drafts>> drafts;

  DeviceTransportOptions get() const {
    DeviceTransportOptions options;
    if (host_cache) options.host_cache = *host_cache;
    if (staging_depth) options.staging_depth = *staging_depth;
    if (on_full) options.on_full = *on_full;
    if (drafts) options.drafts = *drafts;
    return options;
  }
  void refuse(std::string_view transport) const {
    const char* given = host_cache      ? "host_cache"
                        : staging_depth ? "staging_depth"
                        : on_full       ? "on_full"
                        : drafts        ? "drafts"
                                        : nullptr;
    if (given == nullptr) return;
    throw ArgumentError(fmt::format(
        "{} is an option of the 'device' transport; leave it out for '{}'", given, transport));
  }
};

std::unique_ptr<Transport> make_transport(Way way, Device& device, const Endpoint& endpoint,
                                          const DeviceOptions& options) {
  if (way == Way::device) return make_device_transport(device, endpoint, options.get());
  options.refuse(word_of(way));
  return way == Way::shm ? make_shm_transport(device, endpoint)
                         : make_capture_only_transport(device, endpoint);
}

void construct(PyCapturer* self, const Endpoint& endpoint, nb::handle given,
               const Choice<Way>& transport, Maybe<Choice<HostCache>> host_cache,
               Maybe<int> staging_depth, Maybe<Choice<OnFull>> on_full,
               Maybe<Choice<Drafts>> drafts, int dp_rank, int dp_size,
               const Choice<RankLayout>& layout, int shared_expert_columns,
               bool compare_all_picks) {
  const Way way = transport;
  const CapturerOptions options{.dp_rank = dp_rank,
                                .dp_size = dp_size,
                                .layout = layout,
                                .shared_expert_columns = shared_expert_columns,
                                .compare_all_picks = compare_all_picks};
  const DeviceOptions device_options{std::move(host_cache), staging_depth, std::move(on_full),
                                     std::move(drafts)};
  auto device = device_of(given);
  std::unique_ptr<Capturer> capturer;
  {
    const ReleasedGil release;
    capturer = std::make_unique<Capturer>(
        make_transport(way, device->get(), endpoint, device_options), options);
  }
  new (self) PyCapturer(std::move(capturer), std::move(device),
                        fmt::format("the Capturer of {}/{}", endpoint.instance, endpoint.dp_rank),
                        endpoint.timeout);
}

}  // namespace

void add_constructor(nb::class_<PyCapturer>& capturer) {
  capturer.def(
      "__init__", &construct, nb::arg("endpoint"), nb::arg("device") = nb::none(), nb::kw_only(),
      nb::arg("transport") = "device", nb::arg("host_cache") = nb::none(),
      nb::arg("staging_depth") = nb::none(), nb::arg("on_full") = nb::none(),
      nb::arg("drafts") = nb::none(), nb::arg("dp_rank") = 0, nb::arg("dp_size") = 1,
      nb::arg("layout") = "local", nb::arg("shared_expert_columns") = 0,
      nb::arg("compare_all_picks") = false,
      nb::sig("def __init__(self, endpoint: moetap._reader.Endpoint, device: Device | str | None = "
              "None, *, "
              "transport: typing.Literal['device', 'shm', 'capture_only'] = 'device', "
              "host_cache: typing.Literal['scheduler', 'per_request'] | None = None, "
              "staging_depth: int | None = None, on_full: typing.Literal['wait', 'drop'] | None = "
              "None, "
              "drafts: typing.Literal['tree', 'chain'] | None = None, dp_rank: int = 0, dp_size: "
              "int = 1, "
              "layout: typing.Literal['local', 'concatenated', 'padded'] = 'local', "
              "shared_expert_columns: int = 0, compare_all_picks: bool = False) -> None"),
      "device: a Device, its name, or None for a GPU if there is one, else the host device.\n"
      "host_cache ('scheduler'), staging_depth (2), on_full ('wait') and drafts ('tree') are "
      "options of\n"
      "the 'device' transport. layout: which tokens' rows topk_ids has. shared_expert_columns: "
      "columns\n"
      "after the top_k routed ones. OwnedError if this process, or a living one, has the name.");
}

}  // namespace moetap::python
