#include "test/model/machine.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace moetap::model {
namespace {

using Kind = Op::Kind;

constexpr std::size_t kWords = 20;
constexpr std::size_t kRegisters = 5;

bool reads(const Op& op) {
  return op.kind == Kind::load || op.kind == Kind::await || op.kind == Kind::add;
}
bool writes(const Op& op) { return op.kind == Kind::store || op.kind == Kind::add; }
bool is_call(const Op& op) { return op.kind >= Kind::lock; }  // into the kernel
bool writes_register(const Op& op) { return op.kind == Kind::load && op.reg >= 0; }

bool acquires(const Op& op) {
  return reads(op) && (op.order == Order::acquire || op.order == Order::seq_cst);
}
bool releases(const Op& op) {
  return writes(op) && (op.order == Order::release || op.order == Order::seq_cst);
}

bool fenced(const Op& earlier, const Op& later) {
  if (earlier.kind == Kind::fence && later.kind == Kind::fence) return true;
  if (later.kind == Kind::fence) return later.order == Order::release || reads(earlier);
  return earlier.order == Order::acquire || writes(later);
}

// Whether `later` must wait for `earlier` of the same thread.
bool ordered(const Op& earlier, const Op& later, Model model) {
  if (is_call(earlier) || is_call(later)) return true;
  if (earlier.kind == Kind::fence || later.kind == Kind::fence) return fenced(earlier, later);
  if (earlier.word == later.word) return true;
  if (writes_register(earlier) && earlier.reg == later.reg) return true;
  if (acquires(earlier) || releases(later)) return true;
  if (earlier.order == Order::seq_cst && later.order == Order::seq_cst) return true;
  switch (model) {
    case Model::x86_tso:
      return earlier.kind != Kind::store || writes(later);
    case Model::arm64:
      return earlier.kind == Kind::await && writes(later);
    case Model::language:
      return false;
  }
  return true;
}

struct Thread {
  std::uint8_t next = 0;  // to be fetched
  bool sleeping = false;
  std::array<Value, kRegisters> registers{};
  std::vector<std::uint8_t> pending;  // fetched and not carried out, in the program's order
};

struct State {
  std::array<Value, kWords> memory{};
  std::vector<Thread> threads;

  std::string key() const {
    std::string key(memory.begin(), memory.end());
    for (const Thread& thread : threads) {
      key += static_cast<char>(thread.next);
      key += static_cast<char>(thread.sleeping);
      key.append(thread.registers.begin(), thread.registers.end());
      key.append(thread.pending.begin(), thread.pending.end());
      key += '\xFF';
    }
    return key;
  }
};

class Explorer {
 public:
  Explorer(const std::vector<Program>& programs, Model model)
      : programs_(programs), model_(model) {}

  Outcome run(const std::vector<Value>& initial) {
    State state;
    std::ranges::copy(initial, state.memory.begin());
    state.threads.resize(programs_.size());
    for (std::size_t i = 0; i < programs_.size(); ++i) fetch(state.threads[i], programs_[i]);
    visit(state);
    return {seen_.size(), ends_, wrong_};
  }

 private:
  // Up to a branch that hangs on a value which has not come yet.
  static void fetch(Thread& thread, const Program& program) {
    while (thread.next < program.size()) {
      const Op& op = program[thread.next];
      if (op.kind == Kind::jump) {
        thread.next = static_cast<std::uint8_t>(op.target);
      } else if (op.kind != Kind::branch) {
        thread.pending.push_back(thread.next++);
      } else {
        const auto decides = [&](std::uint8_t index) {
          return writes_register(program[index]) && program[index].reg == op.reg;
        };
        if (std::ranges::any_of(thread.pending, decides)) return;
        const Value value = thread.registers[static_cast<std::size_t>(op.reg)];
        const bool taken = op.compare == Op::Compare::equal ? value == op.value : value >= op.value;
        thread.next = static_cast<std::uint8_t>(taken ? op.target : thread.next + 1);
      }
    }
  }

  bool may_run(const State& state, std::size_t thread, std::size_t position) const {
    const Program& program = programs_[thread];
    const auto& pending = state.threads[thread].pending;
    const Op& op = program[pending[position]];
    if (op.kind == Kind::await && state.memory[op.word] < op.value) return false;
    if (op.kind == Kind::lock && state.memory[op.word] != 0) return false;
    return std::none_of(
        pending.begin(), pending.begin() + static_cast<std::ptrdiff_t>(position),
        [&](std::uint8_t earlier) { return ordered(program[earlier], op, model_); });
  }

  // False if the operation read what it must not read.
  bool carry_out(State& state, std::size_t index, const Op& op) const {
    Thread& thread = state.threads[index];
    Value& word = state.memory[op.word];
    switch (op.kind) {
      case Kind::load:
        if (op.expected && word != op.value) return false;
        if (op.reg >= 0) thread.registers[static_cast<std::size_t>(op.reg)] = word;
        break;
      case Kind::store:
        word = op.value;
        break;
      case Kind::add:
        word = static_cast<Value>(word + op.value);
        break;
      case Kind::lock:
        word = 1;
        break;
      case Kind::unlock:
        word = 0;
        break;
      case Kind::futex_wait:
        thread.sleeping = word == thread.registers[static_cast<std::size_t>(op.reg)];
        break;
      case Kind::futex_wake:
        wake(state, op.word);
        break;
      case Kind::await:
      case Kind::branch:
      case Kind::jump:
      case Kind::fence:
        break;
    }
    return true;
  }

  // A sleeper's futex_wait is after it: the operation before whatever is pending.
  void wake(State& state, std::uint8_t word) const {
    for (std::size_t i = 0; i < state.threads.size(); ++i) {
      Thread& thread = state.threads[i];
      const std::size_t slept_at =
          (thread.pending.empty() ? thread.next : thread.pending.front()) - std::size_t{1};
      if (thread.sleeping && programs_[i][slept_at].word == word) thread.sleeping = false;
    }
  }

  // Depth first; true if a wrong state was found, whose way is in wrong_ then.
  bool visit(const State& state) {
    if (!seen_.insert(state.key()).second) return false;
    bool moved = false;
    for (std::size_t i = 0; i < state.threads.size(); ++i) {
      if (state.threads[i].sleeping) continue;
      for (std::size_t position = 0; position < state.threads[i].pending.size(); ++position) {
        if (!may_run(state, i, position)) continue;
        moved = true;
        if (step(state, i, position)) return true;
      }
    }
    const auto ended = [](const Thread& thread) {
      return thread.pending.empty() && !thread.sleeping;
    };
    if (moved) return false;
    if (std::ranges::all_of(state.threads, ended)) {
      ends_.emplace(state.memory.begin(), state.memory.end());
      return false;
    }
    wrong_ = way_;
    wrong_.emplace_back("nothing can go on");
    return true;
  }

  bool step(const State& state, std::size_t thread, std::size_t position) {
    State after = state;
    auto& pending = after.threads[thread].pending;
    const std::uint8_t index = pending[position];
    const Op& op = programs_[thread][index];
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(position));
    way_.push_back("thread " + std::to_string(thread) + ", operation " + std::to_string(index) +
                   ": word " + std::to_string(op.word) + " is " +
                   std::to_string(state.memory[op.word]));
    bool wrong = !carry_out(after, thread, op);
    if (wrong) {
      wrong_ = way_;
    } else {
      fetch(after.threads[thread], programs_[thread]);
      wrong = visit(after);
    }
    way_.pop_back();
    return wrong;
  }

  const std::vector<Program>& programs_;
  Model model_;
  std::unordered_set<std::string> seen_;
  std::set<std::vector<Value>> ends_;
  std::vector<std::string> way_;
  std::vector<std::string> wrong_;
};

}  // namespace

Outcome explore(const std::vector<Program>& threads, Model model,
                const std::vector<Value>& initial) {
  return Explorer(threads, model).run(initial);
}

}  // namespace moetap::model
