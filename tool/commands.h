// The subcommands. Each prints its result to standard output, as text or as JSON, and throws
// exceptions that failure.h turns into an exit status.
#pragma once

#include <moetap/shape.h>
#include <moetap/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tool/failure.h"

namespace moetap::tool {

struct InspectOptions {
  std::string name;  // of a segment, or an instance; empty: all
  bool json = false;
};
// kDamaged if a segment is damaged.
ExitStatus inspect_command(const InspectOptions& options);

struct WatchOptions {
  std::string name;  // as above
  std::chrono::milliseconds interval{1000};
  std::int64_t count = 0;  // reports; 0: until SIGINT or SIGTERM
  bool json = false;
};
ExitStatus watch_command(const WatchOptions& options);

struct DumpOptions {
  std::string name;  // of a native buffer
  std::string slots;
  std::string file;
  std::string type;  // of ids; empty: the narrowest, int16 or int32 with one of the next two
  bool missing = false;
  bool hidden_layers = false;  // rows of all the model's layers
  Step first_step = 1;
  Step last_step = Step::max();
  std::chrono::milliseconds timeout{2000};
  bool json = false;
};
ExitStatus dump_command(const DumpOptions& options);

// All numbers except those of the model and `blocks` are 1 or more.
struct PlanOptions {
  std::string config;  // a file; or
  std::string model;   // a known model; or
  int layers = 0;      // these three
  int top_k = 0;
  int experts = 0;
  std::string weights = "none";
  std::int64_t tokens = 8192;
  std::int64_t blocks = 0;  // 0: no endpoint, only the model
  int block_size = 16;
  int ranks = 1;
  int ring_depth = 4;
  int staging_depth = 2;
  bool json = false;
};
ExitStatus plan_command(const PlanOptions& options);

struct GcOptions {
  bool dry_run = false;
  bool json = false;
};
ExitStatus gc_command(const GcOptions& options);

}  // namespace moetap::tool
