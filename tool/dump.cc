#include <moetap/read_transport.h>
#include <moetap/routes.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <vector>

#include "ipc/internal/names.h"
#include "lib/internal/expert_ids.h"
#include "lib/internal/number_format.h"
#include "tool/commands.h"
#include "tool/dead_buffer.h"
#include "tool/inspection.h"
#include "tool/new_file.h"
#include "tool/output.h"
#include "tool/segment_file.h"
#include "tool/selection.h"
#include "tool/slot_list.h"
#include "tool/text.h"

namespace moetap::tool {
namespace {

constexpr RowState kStates[] = {RowState::present, RowState::missing, RowState::stale,
                                RowState::clobbered, RowState::unverified};

// Or one whose head does not say what it is: endpoint_of() gives a better error for it.
SegmentInfo buffer_named(const std::string& name) {
  using Kind = SegmentInfo::Kind;
  const auto found = select_segments(name);
  if (found.empty()) {
    throw NotThere(fmt::format("no segment and no instance is named '{}'", printable(name)));
  }
  for (const Kind kind : {Kind::shm, Kind::other}) {
    std::vector<SegmentInfo> buffers = found;
    std::erase_if(buffers, [kind](const auto& segment) { return segment.kind != kind; });
    if (buffers.size() == 1) return buffers[0];
    if (!buffers.empty()) break;
  }
  throw ArgumentError(fmt::format(
      "'{}' names {} segments, but not one native `shm` buffer: name one. The rows of a ring can "
      "only be taken by its one reader, and a wire-compatible buffer does not say what they are of",
      printable(name), found.size()));
}

// A living worker's buffer is read under the lock, as by any reader.
Routes read_routes(const SegmentFile& file, Endpoint endpoint, std::span<const Slot> slots,
                   const DumpOptions& options) {
  Routes routes(endpoint.shape, {0, static_cast<std::int64_t>(slots.size())});
  const StepWindow window{options.first_step, options.last_step};
  endpoint.timeout = options.timeout;
  if (file.owner_pid() != 0) {
    make_shm_reader(endpoint)->read(slots, {&window, 1}, routes.bytes(), routes.states());
  } else {
    read_dead(file, endpoint, slots, window, routes);
  }
  return routes;
}

// Rows that a file passes on are checked like all rows from elsewhere (H20, H32).
void require_sound(const Routes& routes, std::span<const Slot> slots, const std::string& name) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto row = routes.row(static_cast<std::int64_t>(i));
    if (routes.states()[i] != RowState::present || detail::can_be_present(routes.shape(), row))
      continue;
    throw MismatchError(fmt::format(
        "{}: the row of slot {} has an id of no expert, or the same expert twice in a layer: its "
        "memory was overwritten; nothing is written",
        name, slots[i]));
  }
}

void require_present(const Routes& routes, std::span<const Slot> slots) {
  if (routes.all_present()) return;
  std::string text;
  for (const RowState state : kStates) {
    if (state == RowState::present || routes.count(state) == 0) continue;
    std::vector<Slot> of_it;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (routes.states()[i] == state) of_it.push_back(slots[i]);
    }
    text += fmt::format("{}{} {} (slots {})", text.empty() ? "" : ", ", of_it.size(),
                        row_state_name(state), to_text(of_it));
  }
  throw RowsNotPresent(fmt::format(
      "of {} rows {}: leave them out, or give --missing to write them as -1", slots.size(), text));
}

IdType type_of(const DumpOptions& options, const ModelShape& shape) {
  if (options.type.empty()) {
    if (!options.missing && !options.hidden_layers) return shape.id_type();
    return holds_ids(IdType::int16, shape.num_experts()) ? IdType::int16 : IdType::int32;
  }
  for (const IdType type :
       {IdType::uint8, IdType::uint16, IdType::int16, IdType::int32, IdType::int64}) {
    if (id_type_name(type) != options.type) continue;
    if (options.missing && (type == IdType::uint8 || type == IdType::uint16)) {
      throw ArgumentError(
          fmt::format("{} has no -1 for rows that are missing: use int16 or wider", options.type));
    }
    return type;
  }
  throw ArgumentError(fmt::format("type '{}': must be uint8, uint16, int16, int32 or int64",
                                  printable(options.type)));
}

// A one-dimensional uint8 .npy file.
std::string states_npy(std::span<const RowState> states) {
  std::string header =
      fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", states.size());
  header.resize(117, ' ');
  std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
  file += header + '\n';
  for (const RowState state : states) file += static_cast<char>(state);
  return file;
}

// "rows.states.npy", beside "rows.npy".
std::string beside(const std::string& path, std::string_view what) {
  const std::string_view stem =
      path.ends_with(".npy") ? std::string_view(path).substr(0, path.size() - 4) : path;
  return fmt::format("{}.{}.npy", stem, what);
}

// A dump replaces only the files that it writes: a weights file may belong to other rows if this
// dump has none.
void require_no_weights(const std::string& rows) {
  const std::string path = beside(rows, "weights");
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return;
  throw ArgumentError(
      fmt::format("{} is there, and would lie beside rows that have no weights: remove it, or name "
                  "another file",
                  path));
}

// Wherever this is interrupted, a rows file has its own states and weights beside it: it is written
// last, and an earlier dump's is removed first.
void write_files(const std::string& path, const Routes& routes, IdType type, ArrayLayers layers) {
  const bool has_weights = routes.shape().weight_type() != WeightType::none;
  if (!has_weights) require_no_weights(path);
  const Interrupts interrupts;
  NewFile rows_file(path);
  NewFile states_file(beside(path, "states"));
  std::optional<NewFile> weights_file;
  rows_file.write(to_npy(routes, type, layers), interrupts);
  states_file.write(states_npy(routes.states()), interrupts);
  if (has_weights) {
    weights_file.emplace(beside(path, "weights"));
    weights_file->write(weights_to_npy(routes, layers), interrupts);
  }
  unlink(path.c_str());
  states_file.place();
  if (weights_file) weights_file->place();
  rows_file.place();
  rows_file.keep();
  states_file.keep();
  if (weights_file) weights_file->keep();
}

// Rows, and the largest file that is made of them.
std::size_t bytes_of_memory(std::size_t slots, const ModelShape& shape, IdType type) {
  const std::size_t element = std::max(id_bytes(type), weight_bytes(shape.weight_type()));
  const auto layers = static_cast<std::size_t>(shape.num_hidden_layers());  // or fewer
  return slots * (sizeof(Slot) + shape.row_bytes() + sizeof(RowState) +
                  layers * static_cast<std::size_t>(shape.top_k()) * element);
}

}  // namespace

ExitStatus dump_command(const DumpOptions& options) {
  const SegmentInfo segment = buffer_named(options.name);
  const SegmentFile file(segment.name);
  const Endpoint endpoint = endpoint_of(file);
  if (buffer_name(endpoint) != file.name()) {
    throw ArgumentError(fmt::format("{} is a ring, whose rows only its one reader can take",
                                    printable(file.name())));
  }
  const IdType type = type_of(options, endpoint.shape);
  const auto slots = parse_slots(options.slots, endpoint.num_slots);
  const ArrayLayers layers = options.hidden_layers ? hidden_layers() : kMoeLayers;
  Routes routes(endpoint.shape, {0, 0});
  try {
    routes = read_routes(file, endpoint, slots, options);
    require_sound(routes, slots, printable(file.name()));
    if (!options.missing) require_present(routes, slots);
    write_files(options.file, routes, type, layers);
  } catch (const std::bad_alloc&) {
    throw SystemError(
        ENOMEM, fmt::format("the rows of {} slots take {} bytes of memory; name fewer with --slots",
                            slots.size(), bytes_of_memory(slots.size(), endpoint.shape, type)));
  }

  nlohmann::json json = {
      {"name", printable(segment.name)},
      {"file", printable(options.file)},
      {"states_file", printable(beside(options.file, "states"))},
      {"dtype", id_type_name(type)},
      {"shape",
       {slots.size(),
        layers.all_hidden ? endpoint.shape.num_hidden_layers() : endpoint.shape.num_layers(),
        endpoint.shape.top_k()}},
      {"moe_layers", endpoint.shape.moe_layers()}};
  if (endpoint.shape.weight_type() != WeightType::none) {
    json["weights_file"] = printable(beside(options.file, "weights"));
    json["weights"] = weight_type_name(endpoint.shape.weight_type());
  }
  std::string text =
      fmt::format("{}: {} rows as {}", printable(options.file), slots.size(), id_type_name(type));
  for (const RowState state : kStates) {
    const std::size_t n = routes.count(state);
    json["states"][std::string(row_state_name(state))] = n;
    if (n > 0) text += fmt::format(", {} {}", n, row_state_name(state));
  }
  print((options.json ? json.dump() : text) + '\n');
  return kDone;
}

}  // namespace moetap::tool
