#include "test/crash/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>

#include "ipc/internal/names.h"
#include "ipc/system/fork_guard.h"
#include "test/ipc/child_process.h"
#include "test/ipc/shared_object.h"
#include "test/ipc/temporary_directory.h"

namespace moetap::crash {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;

constexpr Step kVictimSteps = 16;
constexpr std::uint32_t kEnough = 3;  // steps verified

// Of another size than any session's. Returns a descriptor of it: while it is open, only a worker
// of its name removes it.
int make_wire_buffer_of_a_dead_worker(const Endpoint& endpoint) {
  const std::string name = buffer_name(endpoint);
  shm_unlink(name.c_str());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  const bool made = fchmod(fd, S_ISVTX | 0600) == 0 && ftruncate(fd, 64) == 0;
  EXPECT_TRUE(made) << name;
  return fd;
}

class Session {
 public:
  Session(const Case& c, std::uint64_t seed, bool dry = false)
      : setup_{c,
               seed,
               {.instance = fmt::format("crash-{}-{}", getpid(), ++sessions_),
                .shape = ModelShape::uniform(3, 2, 65536).with_repeated_experts(),
                .num_slots = 64,
                .max_tokens = 8,
                .ring_depth = 3,
                .layout = c.transport == Transport::wire ? ShmLayout::wire : ShmLayout::native,
                .timeout = Milliseconds(2000)},
               dry} {}

  Outcome run(int kills) {
    if (setup_.kill.side == Side::worker) {
      kill_workers(kills);
    } else {
      kill_readers(kills);
    }
    expect_nothing_left();
    outcome_.rows = shared_->rows;
    return outcome_;
  }

  std::map<std::string, int> passed() const {
    std::map<std::string, int> times;
    for (const auto& entry : shared_->passed) {
      if (entry.times > 0) times[entry.point] = entry.times;
    }
    return times;
  }

 private:
  // Whether such a point is what this session is about.
  bool about(std::string_view prefix) const {
    return setup_.dry || (setup_.kill.point != nullptr &&
                          std::string_view(setup_.kill.point).starts_with(prefix));
  }
  bool anywhere() const { return setup_.kill.point == nullptr && !setup_.dry; }
  Step victim_steps() const { return anywhere() ? kForEver : kVictimSteps; }

  void prepare_victim(int passing) const {
    if (setup_.dry) return count_passings(*shared_);
    kill_here(setup_.kill, passing);
  }

  void kill_workers(int kills) {
    ChildProcess reader([&] {
      if (about("publish waits")) linger_with_the_lock();
      run_reader(setup_, *shared_, static_cast<int>(kForEver.value()));
    });
    for (int i = 0; i < kills && !testing::Test::HasFailure(); ++i) {
      if (about("reclaim")) leave_one_behind();
      const GuardedDescriptor used([&] {
        return about("create replaces") ? make_wire_buffer_of_a_dead_worker(setup_.endpoint) : -1;
      });
      kill_worker(i, reader);
    }
    const std::uint32_t generation = ++generation_;
    ChildProcess last([&] { run_worker(setup_, *shared_, generation, kForEver, false); });
    wait_until([&] { return shared_->attached == generation && shared_->verified >= kEnough; },
               reader, "rows of the last worker");
    shared_->stop = true;
    expect_ended(last.join(), "the last worker");
    expect_ended(reader.join(), "the reader");
  }

  void kill_worker(int number, const ChildProcess& reader) {
    const std::uint32_t generation = ++generation_;
    const int passing = draw_passing(number);
    const bool early = !setup_.dry && (about("create") || about("reclaim"));
    ChildProcess victim([&] {
      prepare_victim(passing);
      run_worker(setup_, *shared_, generation, victim_steps(), early);
    });
    const bool killed = end(victim, number);
    shared_->killed_at_point[generation] = killed;
    shared_->dead = generation;
    // Who saw it must see its end.
    if (setup_.kill.transport == Transport::wire || shared_->attached != generation) return;
    const auto dead = std::chrono::steady_clock::now();
    wait_until([&] { return shared_->lost >= generation; }, reader, "the reader to notice");
    outcome_.noticed = std::max(
        outcome_.noticed, std::chrono::ceil<Milliseconds>(std::chrono::steady_clock::now() - dead));
  }

  void kill_readers(int kills) {
    const std::uint32_t generation = ++generation_;
    ChildProcess worker([&] { run_worker(setup_, *shared_, generation, kForEver, true); });
    for (int i = 0; i < kills && !testing::Test::HasFailure(); ++i) {
      const int passing = draw_passing(i);
      ChildProcess victim([&] {
        prepare_victim(passing);
        arm();
        run_reader(setup_, *shared_, static_cast<int>(victim_steps().value()));
      });
      end(victim, i);
    }
    shared_->verified = 0;
    ChildProcess last([&] { run_reader(setup_, *shared_, static_cast<int>(kForEver.value())); });
    wait_until([&] { return shared_->verified >= kEnough; }, last, "rows for the last reader");
    shared_->stop = true;
    expect_ended(worker.join(), "the worker");
    expect_ended(last.join(), "the last reader");
  }

  // What a worker of another instance leaves, which only reclaim() ever removes.
  void leave_one_behind() {
    Setup setup = setup_;
    setup.endpoint.instance.insert(0, "gone-");
    setup.kill.point = "create published";
    const std::uint32_t generation = ++generation_;
    ChildProcess worker([&] {
      kill_here(setup.kill, 1);
      run_worker(setup, *shared_, generation, 1, true);
    });
    worker.join();
    shared_->dead = generation;
  }

  // Of a victim: killed as meant, or not at all if it did not pass there so often.
  bool end(ChildProcess& victim, int number) {
    if (anywhere()) {
      usleep(static_cast<useconds_t>(mix(setup_.seed + 1, static_cast<std::uint64_t>(number)) %
                                     20'000));
      ::kill(victim.pid(), SIGKILL);
    }
    const int status = victim.join();
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed) expect_ended(status, "a victim");
    outcome_.killed += static_cast<int>(killed);
    return killed;
  }

  void expect_ended(int status, const char* who) const {
    EXPECT_EQ(status, 0) << who
                         << (status == -1                    ? " does not end"
                             : WIFSIGNALED(status)           ? " died of a signal"
                             : WEXITSTATUS(status) == kWrong ? " found something wrong"
                                                             : " failed");
  }

  template <class Ready>
  void wait_until(Ready&& ready, const ChildProcess& reader, const char* what) const {
    for (int waited = 0; !ready(); ++waited) {
      ASSERT_LT(waited, 5 * test::kPatienceMs) << "waited for " << what;
      ASSERT_FALSE(reader.ended()) << "waited for " << what << ", but the reader has ended";
      usleep(200);
    }
  }

  int draw_passing(int number) const {
    return 1 + static_cast<int>(mix(setup_.seed, static_cast<std::uint64_t>(number)) %
                                static_cast<std::uint64_t>(setup_.kill.most_passings));
  }

  void expect_nothing_left() const {
    for (const auto& file : fs::directory_iterator("/dev/shm")) {
      EXPECT_EQ(file.path().string().find(setup_.endpoint.instance + "_"), std::string::npos)
          << file.path();
    }
    for (const auto& file : fs::recursive_directory_iterator(directory_.path())) {
      // vLLM leaves the wire layout's lock file too: another process may be about to open it.
      const bool wire = setup_.kill.transport == Transport::wire;
      EXPECT_TRUE(file.is_directory() || (wire && file.path().extension() == ".lock"))
          << file.path();
    }
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  static constexpr Step kForEver = 1'000'000'000;
  inline static int sessions_ = 0;

  const test::TemporaryDirectory directory_;
  const test::ScopedVariable tmpdir_{"TMPDIR", directory_.path()};
  const Setup setup_;
  const test::SharedObject<Shared> shared_;
  std::uint32_t generation_ = 0;
  Outcome outcome_;
};

// Whatever happened before.
void remove_all_of(const std::string& prefix) {
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator("/dev/shm", ignored)) {
    if (file.path().filename().string().find(prefix) != std::string::npos) {
      fs::remove(file.path(), ignored);
    }
  }
}

}  // namespace

Outcome run_session(const Case& c, std::uint64_t seed, int kills) {
  const Outcome outcome = Session(c, seed).run(kills);
  if (testing::Test::HasFailure()) remove_all_of(fmt::format("crash-{}-", getpid()));
  return outcome;
}

std::map<std::string, int> run_dry(Transport transport, Side side, std::uint64_t seed) {
  Session session({transport, side, nullptr}, seed, true);
  session.run(1);
  return session.passed();
}

}  // namespace moetap::crash
