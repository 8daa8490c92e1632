#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <list>

#include "lib/internal/number_format.h"
#include "tool/commands.h"
#include "tool/interrupts.h"
#include "tool/live_segment.h"
#include "tool/output.h"
#include "tool/selection.h"
#include "tool/text.h"

namespace moetap::tool {
namespace {

using Clock = std::chrono::steady_clock;

struct Screen {
  bool terminal = isatty(STDOUT_FILENO) != 0;
  HeatMapStyle style;

  Screen() {
    winsize size{};
    if (!terminal || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return;
    style.columns = std::clamp(size.ws_col - 40, 8, 256);
    style.lines = std::max(4, size.ws_row - 6);
    style.colour = std::getenv("NO_COLOR") == nullptr;
  }
};

nlohmann::json to_json(const Activity& activity, double seconds) {
  nlohmann::json json = {{"name", printable(activity.name)},
                         {"kind", activity.ring ? "ring" : "shm"},
                         {"problem", nullptr},
                         {"last_step", activity.last_step.value()},
                         {"steps_per_s", static_cast<double>(activity.steps) / seconds}};
  if (!activity.problem.empty()) json["problem"] = printable(activity.problem);
  if (activity.ring) {
    json["waiting"] = activity.waiting;
    return json;
  }
  json["rows_per_s"] = static_cast<double>(activity.rows) / seconds;
  json["sampled"] = activity.sampled;
  for (const LayerLoad& load : activity.load) {
    json["load"].push_back({{"layer", load.layer}, {"picks", load.picks}});
  }
  return json;
}

std::string to_text(const Activity& activity, double seconds, const HeatMapStyle& style) {
  std::string text = fmt::format("{}: ", printable(activity.name));
  if (!activity.problem.empty()) return text + printable(activity.problem) + '\n';
  text += fmt::format("step {}, {:.1f} steps/s", activity.last_step,
                      static_cast<double>(activity.steps) / seconds);
  if (activity.ring) {
    return text +
           fmt::format(", {} records wait (rows are for its reader only)\n", activity.waiting);
  }
  text += fmt::format(", {:.0f} rows/s, load of {} of them:\n",
                      static_cast<double>(activity.rows) / seconds, activity.sampled);
  return text + heat_map(activity.load, style);
}

class Watch {
 public:
  explicit Watch(const WatchOptions& options) : options_(options) { find(); }

  bool nothing() const { return segments_.empty(); }

  std::string report(double seconds) {
    std::string text;
    auto list = nlohmann::json::array();
    for (LiveSegment& segment : segments_) {
      const Activity activity = segment.look();
      list.push_back(to_json(activity, seconds));
      text += to_text(activity, seconds, screen_.style);
    }
    find();
    if (options_.json) return nlohmann::json{{"segments", list}}.dump() + '\n';
    if (text.empty()) text = "no worker\n";
    return (screen_.terminal ? "\x1b[H\x1b[2J" : "") + text + (screen_.terminal ? "" : "\n");
  }

 private:
  // Workers start and end: one of the same name may be a different worker.
  void find() {
    auto alive = select_segments(options_.name);
    std::erase_if(alive, [](const SegmentInfo& segment) {
      return segment.owner != SegmentInfo::Owner::alive ||
             (segment.kind != SegmentInfo::Kind::shm && segment.kind != SegmentInfo::Kind::ring);
    });
    const auto same = [](const SegmentInfo& a) {
      return [&a](const SegmentInfo& b) { return a.name == b.name && a.owner_pid == b.owner_pid; };
    };
    segments_.remove_if([&](const LiveSegment& segment) {
      return std::ranges::none_of(alive, same(segment.segment()));
    });
    for (const SegmentInfo& segment : alive) {
      const auto known = std::ranges::any_of(
          segments_, [&](const LiveSegment& live) { return same(segment)(live.segment()); });
      if (!known) segments_.emplace_back(segment);
    }
  }

  const WatchOptions& options_;
  Screen screen_;
  std::list<LiveSegment> segments_;
};

}  // namespace

ExitStatus watch_command(const WatchOptions& options) {
  const Interrupts interrupts;
  Watch watch(options);
  if (watch.nothing() && !options.name.empty()) {
    throw NotThere(fmt::format("no living worker has a segment or an instance named '{}'",
                               printable(options.name)));
  }
  auto last = Clock::now();
  for (std::int64_t n = 0; options.count == 0 || n < options.count; ++n) {
    if (!interrupts.sleep(options.interval)) break;
    const auto now = Clock::now();
    const std::string text = watch.report(std::chrono::duration<double>(now - last).count());
    last = now;
    if (!print(text, interrupts)) break;
  }
  interrupts.forget();
  return kDone;
}

}  // namespace moetap::tool
