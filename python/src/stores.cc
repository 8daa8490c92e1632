// Block stores: rows of full KV blocks under the engine's block hashes.
#include <moetap/block_store.h>
#include <moetap/directory_block_store.h>
#include <moetap/offload.h>

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/src/arrays.h"
#include "python/src/bindings.h"
#include "python/src/ledger.h"
#include "python/src/reader.h"

namespace moetap::python {
namespace {

using PyStore = Guarded<BlockStore>;

BlockKey key_of(const nb::bytes& key) {
  return BlockKey(std::string_view(key.c_str(), key.size()));
}

BlockStoreOptions options_of(const ModelShape& shape, int block_size, std::size_t max_bytes,
                             std::string model_version) {
  return {.shape = shape,
          .block_size = block_size,
          .max_bytes = max_bytes,
          .model_version = std::move(model_version)};
}

const char* word(BlockStore::Put put) {
  switch (put) {
    case BlockStore::Put::stored:
      return "stored";
    case BlockStore::Put::present:
      return "present";
    case BlockStore::Put::full:
      return "full";
  }
  return "full";
}

nb::object get_rows(PyStore& s, const nb::bytes& key) {
  const auto use = s.use();
  const BlockStoreOptions& options = use->options();
  const NewArray rows = new_array(
      "uint8", {options.block_size, static_cast<std::int64_t>(options.shape.row_bytes())});
  const BlockKey block = key_of(key);
  const bool found = [&] {
    const ReleasedGil release;
    return use->get(block, {rows.data, options.block_bytes()});
  }();
  return found ? rows.array : nb::none();
}

std::string put_rows(PyStore& s, const nb::bytes& key, nb::handle rows) {
  const auto use = s.use();
  HeldBuffer held;
  const BlockStoreOptions& options = use->options();
  const auto bytes =
      bytes_of(held, rows, "rows",
               {options.block_size, static_cast<std::int64_t>(options.shape.row_bytes())}, false);
  const std::vector<std::byte> own(bytes.begin(), bytes.end());  // checked rows must not change
  const BlockKey block = key_of(key);
  const ReleasedGil release;
  return word(use->put(block, own));
}

// Blocks of one key each.
std::vector<BlockKey> keys_of(const std::vector<nb::bytes>& given) {
  std::vector<BlockKey> keys;
  keys.reserve(given.size());
  for (const nb::bytes& key : given) keys.push_back(key_of(key));
  return keys;
}

bool store(PyStore& s, const nb::bytes& key, PyLedger& l, PyReader& r, GivenBlock block,
           const Timeout& timeout) {
  const auto use = s.use();
  const auto ledger = l.use();
  const auto reader = r.use();
  const BlockKey name = key_of(key);
  return wait_in_parts(r.timeout(timeout), [&](Milliseconds part) {
    return store_block(*use, name, *ledger, *reader, block, part);
  });
}

// One wait: it is no call that can be repeated, as it reports to the ledger first.
std::int64_t load(PyStore& s, const std::vector<nb::bytes>& given, PyLedger& l, PyReader& r,
                  GivenStep step, GivenRequest request, std::int64_t position,
                  const Timeout& timeout) {
  const auto use = s.use();
  const auto ledger = l.use();
  const auto reader = r.use();
  const auto keys = keys_of(given);
  const Milliseconds wait = r.timeout(timeout);
  const ReleasedGil release;
  return load_blocks(*use, keys, *ledger, *reader, step, request, position, wait);
}

void bind_stats(nb::module_& m) {
  using Stats = BlockStore::Stats;
  nb::class_<Stats>(m, "BlockStoreStats", "Counts of one store object.")
      .def_ro("blocks", &Stats::blocks)
      .def_ro("bytes", &Stats::bytes)
      .def_ro("hits", &Stats::hits)
      .def_ro("misses", &Stats::misses)
      .def_ro("evicted", &Stats::evicted)
      .def_ro("refused", &Stats::refused, "Misses where the stored data was corrupt or not ours.")
      .def("__repr__", [](const Stats& s) {
        return fmt::format(
            "BlockStoreStats(blocks={}, bytes={}, hits={}, misses={}, evicted={}, refused={})",
            s.blocks, s.bytes, s.hits, s.misses, s.evicted, s.refused);
      });
}

}  // namespace

void bind_stores(nb::module_& m) {
  bind_stats(m);
  nb::class_<PyStore> store_class(
      m, "BlockStore",
      "Rows of full KV blocks by the engine's block hashes (1 to 64 bytes). Blocks are immutable: "
      "the\n"
      "first put() of a key stays. The least recently used go first; held ones never do.");
  store_class.def_static(
      "in_memory",
      [](const ModelShape& shape, int block_size, std::size_t max_bytes,
         std::string model_version) {
        return std::make_unique<PyStore>(
            make_memory_block_store(
                options_of(shape, block_size, max_bytes, std::move(model_version))),
            "the BlockStore in memory");
      },
      nb::arg("shape"), nb::kw_only(), nb::arg("block_size"), nb::arg("max_bytes"),
      nb::arg("model_version") = "",
      "A store of this process. model_version: identifies the weights that the rows were captured\n"
      "with; after an update make a new store with another one.");
  store_class.def_static(
      "in_directory",
      [](nb::handle path, const ModelShape& shape, int block_size, std::size_t max_bytes,
         std::string model_version) {
        const std::string text = path_of(path);
        return std::make_unique<PyStore>(
            make_directory_block_store(
                text, options_of(shape, block_size, max_bytes, std::move(model_version))),
            "the BlockStore in " + text);
      },
      nb::arg("directory"), nb::arg("shape"), nb::kw_only(), nb::arg("block_size"),
      nb::arg("max_bytes"), nb::arg("model_version") = "",
      nb::sig("def in_directory(directory: str | os.PathLike[str], shape: ModelShape, *, "
              "block_size: int, "
              "max_bytes: int, model_version: str = '') -> BlockStore"),
      "A store that this user's processes share. MismatchError if others may write to the "
      "directory.");
  store_class.def(
      "put", &put_rows, nb::arg("key"), nb::arg("rows"),
      nb::sig("def put(self, key: bytes, rows: numpy.typing.NDArray[numpy.uint8] | bytes) "
              "-> typing.Literal['stored', 'present', 'full']"),
      "Stores a block's rows [block_size][row_bytes], all present; they are checked first.");
  store_class.def("get", &get_rows, nb::arg("key"),
                  nb::sig("def get(self, key: bytes) -> numpy.typing.NDArray[numpy.uint8] | None"),
                  "A copy of a block's rows [block_size][row_bytes], or None.");
  store_class.def(
      "hold", [](PyStore& s, const nb::bytes& key) { return s.use()->hold(key_of(key)); },
      nb::arg("key"),
      "Keeps a block from being evicted until release(). False if it is not stored.");
  store_class.def(
      "release", [](PyStore& s, const nb::bytes& key) { s.use()->release(key_of(key)); },
      nb::arg("key"), "Ends one hold. StateError for a block that is not held.");
  store_class.def_prop_ro("stats", [](PyStore& s) { return s.use()->stats(); });
  store_class.def_prop_ro("shape", [](PyStore& s) { return ModelShape(s.use()->options().shape); });
  store_class.def("close", &PyStore::close);
  store_class.def_prop_ro("closed", &PyStore::closed);
  store_class.def(
      "__enter__", [](nb::handle self) { return nb::borrow(self); },
      nb::sig("def __enter__(self) -> BlockStore"));
  store_class.def(
      "__exit__", [](PyStore& s, nb::args) { s.close(); },
      nb::sig("def __exit__(self, *_: object) -> None"));
  store_class.def("__repr__", [](PyStore& s) {
    return fmt::format("<{}{}>", s.what(), s.closed() ? ", closed" : "");
  });
  m.def(
      "store_block", &store, nb::arg("store"), nb::arg("key"), nb::arg("ledger"), nb::arg("reader"),
      nb::arg("block"), nb::arg("timeout") = nb::none(),
      "Stores the rows of a full block under its hash, once their steps have arrived. False, and\n"
      "nothing is stored, if they are not all present or the store is full.");
  m.def("load_blocks", &load, nb::arg("store"), nb::arg("keys"), nb::arg("ledger"),
        nb::arg("reader"), nb::kw_only(), nb::arg("step"), nb::arg("request"), nb::arg("position"),
        nb::arg("timeout") = nb::none(),
        "For tokens that were loaded from elsewhere, a block for each key from `position` on. Puts "
        "the\n"
        "rows that the store has, and returns for how many blocks. `step` is as in Ledger.fill().");
}

}  // namespace moetap::python
