// Runs small programs of several threads in every order that a processor may carry them out, for
// the models of our protocols (protocols.h).
//
// Memory is one for all threads, as x86 and arm64 have it (a store is seen by every other core at
// once). What is weak is the order: an operation may run before an earlier one of its thread unless
// the model orders the two. No thread of ours reads what it wrote itself without a lock in between,
// so reading from one's own store buffer is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace moetap::model {

using Value = std::uint8_t;

enum class Order : std::uint8_t { relaxed, acquire, release, seq_cst };

// What keeps two operations of a thread on different words in order, beside acquire, release,
// seq_cst and a value that the later one needs:
enum class Model : std::uint8_t {
  x86_tso,   // all but a store and a later load
  arm64,     // a load that decides whether a later store runs at all
  language,  // nothing: what a compiler may do to relaxed operations
};

struct Op {
  enum class Kind : std::uint8_t {
    load,        // word -> reg; wrong if `expected` and it is not `value`
    store,       // value -> word
    add,         // word += value, at once
    fence,       // acquire: between earlier loads and all that follows; release: between all that
                 // came before and later stores
    await,       // a spin loop that ends when word >= value
    branch,      // to `target` if reg `compare` value; nothing after it runs ahead of it
    jump,        // to `target`
    lock,        // waits until word is 0 and makes it 1: a system call, which orders everything
    unlock,      // word = 0
    futex_wait,  // sleeps on word if that still is what reg holds
    futex_wake,  // wakes all that sleep on word
  };
  enum class Compare : std::uint8_t { equal, at_least };

  Kind kind = Kind::load;
  std::uint8_t word = 0;
  Value value = 0;
  Order order = Order::relaxed;
  int reg = -1;
  bool expected = false;
  Compare compare = Compare::equal;
  int target = 0;

  bool operator==(const Op&) const = default;
};

using Program = std::vector<Op>;

struct Outcome {
  std::size_t states = 0;             // that were visited, each once
  std::set<std::vector<Value>> ends;  // the memory when all threads have come to their ends
  std::vector<std::string>
      wrong;  // how the first wrong one came about, step by step; empty if none

  bool holds() const { return wrong.empty(); }
};

// All executions from memory that is zero but for `initial`. Wrong are a load of another value than
// it expects, and an end at which a thread has not come to its own.
Outcome explore(const std::vector<Program>& threads, Model model,
                const std::vector<Value>& initial = {});

}  // namespace moetap::model
