// moetap: inspects the shared memory of moetap's workers, and plans how much memory they will need.
#include <moetap/version.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <sstream>
#include <string>

#include "lib/internal/numbers.h"
#include "tool/commands.h"
#include "tool/output.h"
#include "tool/text.h"

namespace {

using namespace moetap::tool;

constexpr const char* kDescription =
    R"(moetap - look at the routes that workers have in shared memory

A worker of moetap owns one shared memory segment in /dev/shm for each transport:
  /moetap_<instance>_<rank>        a slot buffer (`shm` transport)
  /moetap_<instance>_<rank>_ring   a ring of steps (`device` transport)
  /vllm_routed_experts_buffer_<instance>_<rank>   a wire-compatible buffer, which
                                   says nothing about what it holds
NAME is such a name (with or without its '/'), or an instance, which stands for all of
its segments. Each command prints text for people, or with --json one JSON object a line.)";

constexpr const char* kFooter = R"(
EXIT STATUS
  0  done; watch: also when it was interrupted
  1  the system refused something, also to take all of the output; the message says what
  2  wrong usage: an option, a name or a value that cannot be
  3  there is no segment or instance of that name
  4  a segment holds what no worker of this version writes (inspect reports all others too)
  5  dump: rows that were asked for are not all present; nothing was written
  6  a lock was not free in time, or a segment changed hands meanwhile
  A signal that ends it shows in a shell as 128 and its number: 141 (SIGPIPE) when output goes to
  a pipe without a reader, 130 (SIGINT) and 143 (SIGTERM) for all but watch.

EXAMPLES
  moetap inspect
  moetap watch engine-0 --interval 500
  moetap dump engine-0 --slots 0-15,64-79 --output rows.npy
  moetap plan --model qwen3-30b-a3b --tokens 8192 --blocks 65536 --ranks 8
  moetap gc --dry-run)";

constexpr const char* kInspect =
    R"(Shows: owner alive or dead, kind, model, bytes, last step, and for a buffer the
rows present, who holds its lock, and the latest failed steps; for a ring its reader and the
records that wait. It only reads files: it maps nothing, does not become a ring's reader, and has a buffer's
lock only for the moment that shows that it was free. Numbers of a living worker are from one look each and may be a step apart.)";

constexpr const char* kWatch =
    R"(Shows living workers until it is interrupted: steps a second, and for a slot buffer rows a
second and how often each expert of each layer was picked, against an even load: ten steps from
none to twice that (" .:-=+*#%@" where output is no terminal or NO_COLOR is set). Rows that were
written twice between two looks count once. The load is that of at most 2048 of the new rows,
which it reads as any reader does: under the shared lock, letting the worker go first, and giving
up after 100 ms. Of a ring only the counters can be seen: its rows are for its one reader.
SIGHUP, SIGINT and SIGTERM end it, with status 0, also in a report that no process takes.)";

constexpr const char* kDump =
    R"(Writes rows of a slot buffer to a NumPy file of shape (slots, layers, top_k): of the MoE layers,
or with --hidden-layers of all of the model's, whose dense ones hold -1. The state of
each goes to FILE.states.npy (uint8: 0 present, 1 missing, 2 stale, 3 clobbered), and weights, if rows
hold some, to FILE.weights.npy. They are read under the shared lock, a dead worker's too, since its
schedulers may still put rows. Unless --missing is given, nothing is written if any row is not present. All files have
mode 0600 and are written beside their names and then moved there, over earlier ones. An earlier
FILE goes first and FILE comes last, so that whenever it is there it is whole, with the states and
weights of its own rows. After an error or SIGHUP, SIGINT or SIGTERM nothing of them is left; after
SIGKILL there may be a .moetap-XXXXXX file, or states and weights without FILE. A name that is a
symbolic link, or anything else than a plain file, is refused, and so is a FILE.weights.npy that
would lie beside rows without weights.)";

constexpr const char* kPlan =
    R"(Says which of the model's layers have a router, in ranges ("3-60"), and how many hidden layers
there are; with --blocks, also what an endpoint takes, for each transport: bytes on the device, of pinned memory, in
shared memory, in the scheduler, and over the bus for a step. The numbers come from the functions
that the library allocates by. The ring of the `device` transport is pinned and shared memory, and
counts as both. A per-request host cache grows with the running requests and is not in it.)";

constexpr const char* kGc =
    R"(Removes segments of this user's that no living process owns. An owner is alive while it has a
claim that the kernel releases at its death, whatever its pid, so that workers in other containers
are left alone. Wire-compatible buffers are never removed: a vLLM process, which has no such claim,
may be using one. Workers do the same when they start.)";

constexpr std::int64_t kAnyNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kHour = 3'600'000;

// CLI11's own conversion accepts octal numbers, and clamps larger ones to the maximum.
std::int64_t whole_number(const std::string& option, const std::string& text, std::int64_t least,
                          std::int64_t most) {
  const auto value = moetap::detail::parse_number<std::int64_t>(text);
  if (value && *value >= least && *value <= most) return *value;
  const std::string range = most == kAnyNumber ? fmt::format("{} or more", least)
                                               : fmt::format("from {} to {}", least, most);
  throw CLI::ValidationError(
      option, fmt::format("it is '{}', but must be a whole number, {}", text, range));
}

class Program {
 public:
  Program() {
    app.footer(kFooter);
    app.require_subcommand(1);
    app.set_version_flag("--version", "moetap " MOETAP_VERSION);
    app.get_formatter()->column_width(32);
    add_inspect();
    add_watch();
    add_dump();
    add_plan();
    add_gc();
  }

  int run(int argc, char** argv) {
    try {
      return parsed(argc, argv) ? chosen() : kDone;
    } catch (const CLI::ParseError& error) {
      std::fputs(usage_error(error).c_str(), stderr);
      return kUsage;
    } catch (const std::exception& error) {
      const ExitStatus status = status_of_exception();
      std::fprintf(stderr, "moetap: %s\n", printable(error.what()).c_str());
      return status;
    }
  }

 private:
  // Returns false if it has printed the requested help or version.
  bool parsed(int argc, char** argv) {
    try {
      app.parse(argc, argv);
      return true;
    } catch (const CLI::Success& asked) {
      std::ostringstream text;
      app.exit(asked, text);
      print(text.str());
      return false;
    }
  }

  std::string usage_error(const CLI::Error& error) const {
    std::string text = printable(error.what());
    if (app.get_subcommands().empty()) {
      std::string names;
      for (const CLI::App* sub : app.get_subcommands(nullptr)) {
        names += (names.empty() ? "" : ", ") + sub->get_name();
      }
      const auto rest = app.remaining();
      text = rest.empty() ? fmt::format("a command is missing: {}", names)
                          : fmt::format("there is no command '{}': {}", printable(rest[0]), names);
    }
    return fmt::format("moetap: {}\nRun with --help for more information.\n", text);
  }

  template <class Options>
  CLI::App* add(const char* name, const char* summary, const char* details, Options& options,
                ExitStatus (*command)(const Options&)) {
    CLI::App* sub = app.add_subcommand(name, summary);
    sub->footer(fmt::format("\n{}\n{}", details, kFooter));
    sub->add_flag("--json", options.json, "print JSON");
    sub->callback(
        [this, &options, command] { chosen = [&options, command] { return command(options); }; });
    return sub;
  }

  template <class Value>
  static CLI::Option* add_number(CLI::App* sub, const std::string& name, Value& value,
                                 const std::string& text, std::int64_t most = kAnyNumber,
                                 std::int64_t least = 1) {
    const auto set = [=, &value](const std::string& given) {
      value = Value(whole_number(name, given, least, most));
    };
    return sub->add_option_function<std::string>(name, set, text)->type_name("INT");
  }

  void add_inspect() {
    add("inspect", "Lists segments: owner, model, last step, what waits, problems", kInspect,
        inspect, inspect_command)
        ->add_option("NAME", inspect.name, "a segment or an instance; all if left out");
  }

  void add_watch() {
    CLI::App* sub =
        add("watch", "Shows living workers: steps and rows a second, load of the experts", kWatch,
            watch, watch_command);
    sub->add_option("NAME", watch.name, "a segment or an instance; all if left out");
    add_number(sub, "--interval", watch.interval, "milliseconds between two reports", kHour)
        ->default_str("1000");
    add_number(sub, "--count", watch.count, "end after so many reports");
    sub->add_flag_callback(
        "--once", [this] { watch.count = 1; }, "the same as --count 1");
  }

  void add_dump() {
    CLI::App* sub =
        add("dump", "Writes rows of a slot buffer to a NumPy file", kDump, dump, dump_command);
    sub->add_option("NAME", dump.name, "a buffer, or an instance that has one")->required();
    sub->add_option("--slots", dump.slots, "slots and ranges, as in 0-15,40,64-79, or all")
        ->required();
    sub->add_option("-o,--output", dump.file, "the .npy file")->required();
    sub->add_option("--type", dump.type,
                    "of ids: uint8, uint16, int16, int32 or int64; else the narrowest");
    sub->add_flag("--missing", dump.missing,
                  "write rows that are not present too, all -1 (int16 unless --type is given)");
    sub->add_flag("--hidden-layers", dump.hidden_layers,
                  "rows of all hidden layers, dense ones -1 (int16 unless --type is given)");
    add_number(sub, "--first-step", dump.first_step, "rows of earlier steps are stale")
        ->default_str("1");
    add_number(sub, "--last-step", dump.last_step, "rows of later steps are clobbered");
    add_number(sub, "--timeout", dump.timeout, "milliseconds to wait for the lock", kHour, 0)
        ->default_str("2000");
  }

  void add_plan() {
    CLI::App* sub = add("plan", "Says which layers a model has rows of, and what an endpoint takes",
                        kPlan, plan, plan_command);
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    sub->add_option("--config", plan.config, "the model's config.json");
    sub->add_option("--model", plan.model, "or the name of a known model");
    add_number(sub, "--layers", plan.layers, "or its MoE layers, with --top-k and --experts",
               kMost);
    add_number(sub, "--top-k", plan.top_k, "experts that the router picks for a token", kMost);
    add_number(sub, "--experts", plan.experts, "experts of a layer", kMost);
    sub->add_option("--weights", plan.weights, "captured beside the ids")
        ->check(CLI::IsMember({"none", "float32", "bfloat16"}))
        ->capture_default_str();
    CLI::Option* blocks =
        add_number(sub, "--blocks", plan.blocks,
                   "KV blocks of a rank (anchor group); left out: the model's layers only");
    const auto add_of_endpoint = [&](const char* name, auto& value, const char* text,
                                     std::int64_t most) {
      add_number(sub, name, value, text, most)->default_str(std::to_string(value))->needs(blocks);
    };
    add_of_endpoint("--tokens", plan.tokens, "the most tokens of a step", kAnyNumber);
    add_of_endpoint("--block-size", plan.block_size, "tokens of a block", kMost);
    add_of_endpoint("--ranks", plan.ranks, "data-parallel ranks", kMost);
    add_of_endpoint("--ring-depth", plan.ring_depth, "steps that may wait for the scheduler",
                    kMost);
    add_of_endpoint("--staging-depth", plan.staging_depth, "snapshots that may wait for their copy",
                    kMost);
  }

  void add_gc() {
    add("gc", "Removes what dead workers left in shared memory", kGc, gc, gc_command)
        ->add_flag("--dry-run", gc.dry_run, "say what would be removed, and remove nothing");
  }

  CLI::App app{kDescription, "moetap"};
  InspectOptions inspect;
  WatchOptions watch;
  DumpOptions dump;
  PlanOptions plan;
  GcOptions gc;
  std::function<int()> chosen;
};

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond RLIMIT_FSIZE is then an error
  occupy_standard_descriptors();
  return Program().run(argc, argv);
}
