#include <moetap/read_transport.h>
#include <moetap/stages.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/internal/system_limits.h"
#include "lib/internal/injection.h"

namespace moetap {
namespace {

using Readers = std::vector<std::unique_ptr<SlotReadTransport>>;

// Joins its threads when it is destroyed.
class Threads {
 public:
  Threads() = default;
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  void add(std::thread thread) { threads_.push_back(std::move(thread)); }

 private:
  std::vector<std::thread> threads_;
};

// Attaches to one member. Until all members are attached, those that are take in their workers'
// steps: a worker with a full ring may be what another one's start waits for.
void attach_one(SlotReaderMaker make, const Endpoint& endpoint, std::atomic<int>& missing,
                std::unique_ptr<SlotReadTransport>& reader) {
  struct Done {
    std::atomic<int>& missing;
    ~Done() { --missing; }
  };
  {
    const Done done{missing};
    reader = make(endpoint);
  }
  while (missing > 0 && !MOETAP_OFF("H35 taken in while others attach")) {
    reader->poll();
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

// Attaches to all members within one timeout, each in a thread of its own. Throws the first error
// in the order of the members.
Readers attach_all(SlotReaderMaker make, const std::vector<Endpoint>& endpoints) {
  const std::size_t count = endpoints.size();
  Readers readers(count);
  std::vector<std::exception_ptr> errors(count);
  std::atomic<int> missing = static_cast<int>(count);
  const auto attach = [&](std::size_t i) {
    try {
      attach_one(make, endpoints[i], missing, readers[i]);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  if (count == 1) {
    attach(0);
  } else {
    Threads threads;
    try {
      for (std::size_t i = 0; i < count; ++i) {
        threads.add(start_thread("the reader of a rank", [&attach, i] { attach(i); }));
      }
    } catch (...) {
      missing = 0;  // threads that were never started need no wait
      throw;
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return readers;
}

}  // namespace

std::unique_ptr<SlotReadTransport> make_joined_reader(const Endpoint& engine,
                                                      const Topology& topology,
                                                      SlotReaderMaker make) {
  const std::vector<std::vector<Endpoint>> endpoints = endpoints_of(engine, topology);
  std::vector<Endpoint> all;
  for (const std::vector<Endpoint>& stage : endpoints) {
    all.insert(all.end(), stage.begin(), stage.end());
  }
  Readers readers = attach_all(make, all);
  auto next = std::make_move_iterator(readers.begin());
  Readers stages;
  for (const std::vector<Endpoint>& stage : endpoints) {
    const auto end = next + static_cast<std::ptrdiff_t>(stage.size());
    Readers parts(next, end);
    next = end;
    stages.push_back(parts.size() == 1 ? std::move(parts.front()) : join_parts(std::move(parts)));
  }
  if (stages.size() == 1) return std::move(stages.front());
  return join_stages(engine.shape, std::move(stages));
}

}  // namespace moetap
