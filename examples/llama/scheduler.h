// Decides what the worker runs, and reads the routes of each request that is over.
#pragma once

#include <moetap/endpoint.h>
#include <moetap/ledger.h>
#include <moetap/read_transport.h>
#include <moetap/reader.h>
#include <moetap/types.h>

#include <cstdint>
#include <deque>
#include <fstream>
#include <iosfwd>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "blocks.h"
#include "workload.h"

namespace example {

// Continuous batching with chunked prefill over a paged cache, as engines do it: a request whose
// tokens begin like another's gets the blocks of that one, and when no block is free the youngest
// request is preempted. The worker's sequences follow by orders, see example.h.
class Scheduler {
 public:
  // Waits until the worker has started. `rows` gets what was read of each request: int64 request
  // and number of rows, then int32 [rows][layers][top_k], with -1 for a row that is not present.
  Scheduler(const moetap::Endpoint& endpoint, std::unique_ptr<moetap::SlotReadTransport> transport,
            std::uint64_t seed, const std::string& rows);

  void run(std::vector<Request> requests, std::ostream& orders, std::istream& answers);

  // How often what happened: "preemptions", "hits", …
  const std::map<std::string, std::int64_t>& counts() const { return counts_; }

 private:
  // A sequence of the worker's: the tokens that it has computed, and where.
  struct Sequence {
    int number = 0;
    std::vector<std::int32_t> tokens{};
    std::vector<moetap::BlockId> blocks{};
  };
  struct Running {
    Request request;
    Sequence sequence;
  };
  struct Chunk {
    moetap::RequestId request;
    std::int64_t count;
    bool samples;
  };

  void start_waiting();
  void start(Request request);
  const Sequence* longest_prefix(const std::vector<std::int32_t>& tokens,
                                 std::size_t& length) const;
  std::vector<Chunk> plan_step();
  bool reserve(Running& running, std::int64_t tokens, std::vector<moetap::BlockId>& added);
  void send(const std::vector<Chunk>& chunks);
  void take_answer(const std::vector<Chunk>& chunks);
  void end_finished();

  bool make_room(std::size_t blocks);
  void preempt_youngest();
  void over(Running& running, const moetap::RowPlan& plan);
  void keep_cached(Sequence sequence);
  void drop(Sequence& sequence);
  int free_sequence();
  std::string answer();

  std::int64_t max_tokens_;
  int block_size_;
  moetap::Reader reader_;
  moetap::Ledger ledger_;
  Blocks blocks_;
  std::mt19937_64 random_;
  std::ofstream rows_;
  std::ostream* orders_ = nullptr;
  std::istream* answers_ = nullptr;

  std::uint64_t step_ = 0;
  std::deque<Request> waiting_;
  std::list<Running> running_;   // the youngest last
  std::deque<Sequence> cached_;  // of no request any more; the oldest first
  std::vector<int> free_numbers_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace example
