#include "test/model/protocols.h"

#include <algorithm>

namespace moetap::model {
namespace {

using Kind = Op::Kind;

Op load(std::uint8_t word, int reg, Order order) {
  return {.kind = Kind::load, .word = word, .order = order, .reg = reg};
}
Op expect(std::uint8_t word, Value value, Order order = Order::relaxed) {
  return {.kind = Kind::load, .word = word, .value = value, .order = order, .expected = true};
}
Op store(std::uint8_t word, Value value, Order order = Order::relaxed) {
  return {.kind = Kind::store, .word = word, .value = value, .order = order};
}
Op add(std::uint8_t word, int value, Order order) {
  return {.kind = Kind::add, .word = word, .value = static_cast<Value>(value), .order = order};
}
Op fence(Order order) { return {.kind = Kind::fence, .order = order}; }
Op call(Kind kind, std::uint8_t word, int reg = -1) {
  return {.kind = kind, .word = word, .reg = reg};
}

// Goes on at the next operation only if the register holds the value; `otherwise` is set later.
void go_on_if(Program& p, int reg, Value value, std::vector<std::size_t>& otherwise) {
  const auto at = static_cast<int>(p.size());
  p.push_back({.kind = Kind::branch, .value = value, .reg = reg, .target = at + 2});
  otherwise.push_back(p.size());
  p.push_back({.kind = Kind::jump});
}

void lead_here(Program& p, const std::vector<std::size_t>& jumps) {
  for (const std::size_t jump : jumps) p[jump].target = static_cast<int>(p.size());
}

// After `p`: where `wrong` leads is an error, and nothing else comes there.
void lead_to_error(Program& p, const std::vector<std::size_t>& wrong) {
  p.push_back({.kind = Kind::jump, .target = static_cast<int>(p.size()) + 2});
  lead_here(p, wrong);
  constexpr Value kNever = 99;
  p.push_back(expect(0, kNever));
}

// --- the ring ------------------------------------------------------------------------------------

enum RingWord : std::uint8_t {
  kCommitted,
  kReleased,
  kPublished,  // of a WakeWord: its value, then its sleepers
  kPublishedSleepers,
  kFreed,
  kFreedSleepers,
  kRecords,  // for each: descriptor, two words of the record, and its mark
};
constexpr int kRecordWords = 3;
constexpr int kMark = kRecordWords;

std::uint8_t place_word(int place, int word) {
  return static_cast<std::uint8_t>(kRecords + place * (kMark + 1) + word);
}
Value begun(int number) { return static_cast<Value>(2 * number + 1); }
Value finished(int number) { return static_cast<Value>(2 * number + 2); }

class Ring {
 public:
  Ring(int depth, int records, Waiting waiting, RingChange change)
      : depth_(depth), records_(records), waiting_(waiting), change_(change) {}

  Program producer() const {
    Program p;
    for (int n = 0; n < records_; ++n) {
      if (n >= depth_ && !is(RingChange::no_room_check)) {
        const bool relaxed = is(RingChange::released_read_relaxed);
        wait_until(p, kReleased, n - depth_ + 1, kFreed, relaxed ? Order::relaxed : Order::acquire);
      }
      const auto value = static_cast<Value>(n + 1);
      const Op handed_over =
          store(kCommitted, value,
                is(RingChange::committed_is_relaxed) ? Order::relaxed : Order::release);
      p.push_back(store(record(n, kMark), begun(n)));
      p.push_back(fence(Order::release));
      p.push_back(store(record(n, 1), value));
      p.push_back(store(record(n, 2), value));
      if (is(RingChange::committed_too_early)) p.push_back(handed_over);
      if (is(RingChange::wake_before_store)) wake(p, kPublished);
      p.push_back(store(record(n, 0), value));
      p.push_back(store(record(n, kMark), finished(n), Order::release));
      if (!is(RingChange::committed_too_early)) p.push_back(handed_over);
      if (!is(RingChange::wake_before_store)) wake(p, kPublished);
    }
    return p;
  }

  Program consumer() const {
    Program p;
    for (int n = 0; n < records_; ++n) {
      const bool relaxed = is(RingChange::committed_read_relaxed);
      wait_until(p, kCommitted, n + 1, kPublished, relaxed ? Order::relaxed : Order::acquire);
      const auto value = static_cast<Value>(n + 1);
      const Op given_back = store(
          kReleased, value, is(RingChange::released_is_relaxed) ? Order::relaxed : Order::release);
      if (is(RingChange::released_too_early)) p.push_back(given_back);
      p.push_back(expect(record(n, kMark), finished(n), Order::acquire));
      for (int i = 0; i < kRecordWords; ++i) p.push_back(expect(record(n, i), value));
      p.push_back(fence(Order::acquire));
      p.push_back(expect(record(n, kMark), finished(n)));
      if (!is(RingChange::released_too_early)) p.push_back(given_back);
      wake(p, kFreed);
    }
    return p;
  }

 private:
  bool is(RingChange change) const { return change_ == change; }

  std::uint8_t record(int number, int word) const { return place_word(number % depth_, word); }

  // wait_until() and sleep() of ipc/internal/wait.h.
  void wait_until(Program& p, std::uint8_t counter, int at_least, std::uint8_t word,
                  Order order) const {
    if (waiting_ == Waiting::spins) {
      p.push_back({.kind = Kind::await,
                   .word = counter,
                   .value = static_cast<Value>(at_least),
                   .order = order});
      return;
    }
    const auto start = static_cast<int>(p.size());
    const Op seen = load(word, 0, Order::seq_cst);
    const Op ready = load(counter, 1, order);
    const bool swapped = is(RingChange::looks_before_word);
    p.push_back(swapped ? ready : seen);
    p.push_back(swapped ? seen : ready);
    const std::size_t branch = p.size();
    p.push_back({.kind = Kind::branch,
                 .value = static_cast<Value>(at_least),
                 .reg = 1,
                 .compare = Op::Compare::at_least});
    const auto sleepers = static_cast<std::uint8_t>(word + 1);
    if (!is(RingChange::no_sleepers)) p.push_back(add(sleepers, 1, Order::seq_cst));
    p.push_back(call(Kind::futex_wait, word, 0));
    if (!is(RingChange::no_sleepers)) p.push_back(add(sleepers, -1, Order::seq_cst));
    p.push_back({.kind = Kind::jump, .target = start});
    p[branch].target = static_cast<int>(p.size());
  }

  void wake(Program& p, std::uint8_t word) const {
    if (is(RingChange::no_wake)) return;
    const Order order = is(RingChange::wake_is_relaxed) ? Order::relaxed : Order::seq_cst;
    const Op change = add(word, 1, order);
    const Op sleepers = load(static_cast<std::uint8_t>(word + 1), 2, order);
    const bool swapped = is(RingChange::sleepers_first);
    p.push_back(swapped ? sleepers : change);
    p.push_back(swapped ? change : sleepers);
    p.push_back(
        {.kind = Kind::branch, .value = 0, .reg = 2, .target = static_cast<int>(p.size()) + 2});
    p.push_back(call(Kind::futex_wake, word));
  }

  int depth_;
  int records_;
  Waiting waiting_;
  RingChange change_;
};

// --- the marks -----------------------------------------------------------------------------------

constexpr int kFillings = 2;

Program marking_producer(MarkChange change) {
  Program p;
  for (int n = 0; n < kFillings; ++n) {
    if (change != MarkChange::not_begun) p.push_back(store(place_word(0, kMark), begun(n)));
    if (change != MarkChange::begun_not_fenced) p.push_back(fence(Order::release));
    for (int i = 0; i < kRecordWords; ++i) {
      p.push_back(store(place_word(0, i), static_cast<Value>(n + 1)));
    }
    p.push_back(store(place_word(0, kMark), finished(n),
                      change == MarkChange::finished_is_relaxed ? Order::relaxed : Order::release));
  }
  return p;
}

Program looking_consumer(MarkChange change) {
  constexpr int kFirstLook = kRecordWords;
  constexpr int kSecondLook = kRecordWords + 1;
  Program p;
  std::vector<std::size_t> torn;
  for (int n = 0; n < kFillings; ++n) {
    p.push_back(load(place_word(0, kMark), kFirstLook,
                     change == MarkChange::first_look_relaxed ? Order::relaxed : Order::acquire));
    for (int i = 0; i < kRecordWords; ++i) p.push_back(load(place_word(0, i), i, Order::relaxed));
    if (change != MarkChange::second_look_not_fenced) p.push_back(fence(Order::acquire));
    p.push_back(load(place_word(0, kMark), kSecondLook, Order::relaxed));
    std::vector<std::size_t> not_there;
    go_on_if(p, kFirstLook, finished(n), not_there);
    if (change != MarkChange::no_second_look) go_on_if(p, kSecondLook, finished(n), not_there);
    for (int i = 0; i < kRecordWords; ++i) go_on_if(p, i, static_cast<Value>(n + 1), torn);
    lead_here(p, not_there);
  }
  lead_to_error(p, torn);
  return p;
}

// --- the stamps ----------------------------------------------------------------------------------

enum StampWord : std::uint8_t { kLock, kStamp, kRowA, kRowB, kLastStep };
constexpr Value kBeingWritten = 9;

Program stamp_writer(StampChange change) {
  const Op announced = store(kLastStep, 2, Order::release);
  const Op stamped = store(kStamp, 2);
  Program p;
  if (change == StampChange::announced_first) p.push_back(announced);
  if (change != StampChange::writer_no_lock) p.push_back(call(Kind::lock, kLock));

  if (change != StampChange::not_marked) p.push_back(store(kStamp, kBeingWritten));
  if (change == StampChange::stamped_first) p.push_back(stamped);
  p.push_back(fence(Order::release));
  p.push_back(store(kRowA, 2));
  p.push_back(store(kRowB, 2));
  p.push_back(fence(Order::release));
  if (change != StampChange::stamped_first) p.push_back(stamped);
  if (change != StampChange::announced_first) p.push_back(announced);
  if (change != StampChange::writer_no_lock) p.push_back(call(Kind::unlock, kLock));
  return p;
}

// For a stamp of 1 or 2 the row must be that step's; else it is missing, and not looked at.
Program stamp_reader(bool waits, StampChange change) {
  const bool locks = change != StampChange::reader_no_lock;
  Program p;
  if (waits) {
    p.push_back({.kind = Kind::await, .word = kLastStep, .value = 2, .order = Order::acquire});
  }
  if (locks) p.push_back(call(Kind::lock, kLock));
  if (waits) p.push_back(expect(kStamp, 2));  // what was announced is there
  p.push_back(load(kStamp, 0, Order::relaxed));
  const auto base = static_cast<int>(p.size());
  const int end = base + 7;
  p.push_back({.kind = Kind::branch, .value = 1, .reg = 0, .target = base + 5});
  p.push_back({.kind = Kind::branch, .value = 2, .reg = 0, .target = base + 3});
  p.push_back({.kind = Kind::jump, .target = end});
  p.push_back(expect(kRowA, 2));
  p.push_back(expect(kRowB, 2));
  p[static_cast<std::size_t>(base)].target = base + 6;
  p.push_back({.kind = Kind::jump, .target = base + 8});
  p.push_back(expect(kRowA, 1));
  p.push_back(expect(kRowB, 1));
  p[static_cast<std::size_t>(base) + 2].target = base + 8;
  if (locks) p.push_back(call(Kind::unlock, kLock));
  return p;
}

// --- the note ------------------------------------------------------------------------------------

enum NoteWord : std::uint8_t { kVersion, kNoteA, kNoteB };
constexpr Value kNotes = 2;

Program note_writer(NoteChange change) {
  const auto order = [change](NoteChange relaxed) {
    return change == relaxed ? Order::relaxed : Order::release;
  };
  Program p;
  for (Value n = 1; n <= kNotes; ++n) {
    if (change != NoteChange::not_marked) {
      p.push_back(store(kVersion, static_cast<Value>(2 * n - 1)));
    }
    p.push_back(store(kNoteA, n, order(NoteChange::written_is_relaxed)));
    p.push_back(store(kNoteB, n, order(NoteChange::written_is_relaxed)));
    p.push_back(store(kVersion, static_cast<Value>(2 * n), order(NoteChange::finished_is_relaxed)));
  }
  return p;
}

Program note_reader(NoteChange change) {
  const auto order = [change](NoteChange relaxed) {
    return change == relaxed ? Order::relaxed : Order::acquire;
  };
  Program p = {load(kVersion, 0, order(NoteChange::version_read_relaxed)),
               load(kNoteA, 1, order(NoteChange::words_read_relaxed)),
               load(kNoteB, 2, order(NoteChange::words_read_relaxed)),
               load(kVersion, 3, Order::relaxed)};
  std::vector<std::size_t> torn;
  for (Value n = 0; n <= kNotes; ++n) {
    std::vector<std::size_t> other;  // an odd or a changed version: read again
    go_on_if(p, 0, static_cast<Value>(2 * n), other);
    go_on_if(p, 3, static_cast<Value>(2 * n), other);
    go_on_if(p, 1, n, torn);
    go_on_if(p, 2, n, torn);
    lead_here(p, other);
  }
  lead_to_error(p, torn);
  return p;
}

}  // namespace

std::vector<Program> note(NoteChange change) { return {note_writer(change), note_reader(change)}; }

std::string_view name(NoteChange change) {
  constexpr std::string_view names[] = {"none",
                                        "not_marked",
                                        "written_is_relaxed",
                                        "finished_is_relaxed",
                                        "version_read_relaxed",
                                        "words_read_relaxed"};
  return names[static_cast<std::size_t>(change)];
}

std::vector<Program> ring(int depth, int records, Waiting waiting, RingChange change) {
  const Ring both(depth, records, waiting, change);
  return {both.producer(), both.consumer()};
}

std::vector<Program> stamps(int lives_for, StampChange change) {
  Program writer = stamp_writer(change);
  const bool dies = lives_for != kLives;
  if (dies) {
    writer.resize(std::min(writer.size(), static_cast<std::size_t>(lives_for)));
    // The kernel lets go of what a dead process has locked.
    const Op taken = call(Kind::lock, kLock);
    const Op given = call(Kind::unlock, kLock);
    const auto has = [&](const Op& op) { return std::ranges::find(writer, op) != writer.end(); };
    if (has(taken) && !has(given)) writer.push_back(given);
  }
  return {writer, stamp_reader(!dies, change)};
}

int stamp_writer_operations() { return static_cast<int>(stamp_writer(StampChange::none).size()); }

// The row is step 1's.
std::vector<Value> stamps_initial() { return {0, 1, 1, 1, 1}; }

std::vector<Program> marks(MarkChange change) {
  return {marking_producer(change), looking_consumer(change)};
}

std::string_view name(MarkChange change) {
  constexpr std::string_view names[] = {"none",
                                        "not_begun",
                                        "begun_not_fenced",
                                        "finished_is_relaxed",
                                        "first_look_relaxed",
                                        "no_second_look",
                                        "second_look_not_fenced"};
  return names[static_cast<std::size_t>(change)];
}

std::string_view name(RingChange change) {
  constexpr std::string_view names[] = {"none",
                                        "committed_is_relaxed",
                                        "committed_read_relaxed",
                                        "committed_too_early",
                                        "released_is_relaxed",
                                        "released_read_relaxed",
                                        "released_too_early",
                                        "no_room_check",
                                        "no_wake",
                                        "wake_before_store",
                                        "wake_is_relaxed",
                                        "sleepers_first",
                                        "no_sleepers",
                                        "looks_before_word"};
  return names[static_cast<std::size_t>(change)];
}

std::string_view name(StampChange change) {
  constexpr std::string_view names[] = {
      "none", "not_marked", "stamped_first", "announced_first", "reader_no_lock", "writer_no_lock"};
  return names[static_cast<std::size_t>(change)];
}

}  // namespace moetap::model
