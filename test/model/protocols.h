// Our protocols as programs for the machine, line by line what the sources do, with the one word
// that matters of each thing: two words stand for a row or a record, since one cannot be torn.
//
// Each can be built with one change, as a slip of the pen would make it. A test shows that every
// change is found, and so that the models look at what they claim to look at.
#pragma once

#include <string_view>
#include <vector>

#include "test/model/machine.h"

namespace moetap::model {

// The ring of the `device` transport (src/ring.h, src/channel_producer.cc,
// src/channel_consumer.cc, src/wait.cc): a producer and a consumer, both of which sleep when there
// is nothing to do. The consumer must read each record as the producer wrote it, and both must come
// to their end.
enum class RingChange {
  none,
  committed_is_relaxed,    // the store that hands a record over
  committed_read_relaxed,  // the consumer's look at it
  committed_too_early,     // before the descriptor
  released_is_relaxed,     // the store that gives a record back
  released_read_relaxed,   // the producer's look at it
  released_too_early,      // before the record is read
  no_room_check,           // the producer does not wait for a free record (H14)
  no_wake,                 // no waiter is woken
  wake_before_store,       // the word changes before what it announces
  wake_is_relaxed,         // the waker's two operations
  sleepers_first,          // the waker looks for sleepers before it changes the word
  no_sleepers,             // the waiter does not say that it sleeps
  looks_before_word,       // the waiter looks at the counter first, then at the word
};
inline constexpr RingChange kRingChanges[] = {
    RingChange::committed_is_relaxed,  RingChange::committed_read_relaxed,
    RingChange::committed_too_early,   RingChange::released_is_relaxed,
    RingChange::released_read_relaxed, RingChange::released_too_early,
    RingChange::no_room_check,         RingChange::no_wake,
    RingChange::wake_before_store,     RingChange::wake_is_relaxed,
    RingChange::sleepers_first,        RingChange::no_sleepers,
    RingChange::looks_before_word,
};
std::string_view name(RingChange change);
// A waiter spins before it sleeps. While it spins, what comes after its loop may run ahead.
enum class Waiting { spins, sleeps };
std::vector<Program> ring(int depth, int records, Waiting waiting,
                          RingChange change = RingChange::none);

// A record's place and its mark (src/ring.h), where a neighbour has written to the counters, so
// that neither end waits for the other: the producer fills one place twice, the consumer looks
// there for either record at any time. What it takes for a record was written as that one.
enum class MarkChange {
  none,
  not_begun,            // the mark before the first byte
  begun_not_fenced,     // ... and what keeps it there
  finished_is_relaxed,  // the mark after the last
  first_look_relaxed,
  no_second_look,
  second_look_not_fenced,
};
inline constexpr MarkChange kMarkChanges[] = {
    MarkChange::not_begun,           MarkChange::begun_not_fenced,
    MarkChange::finished_is_relaxed, MarkChange::first_look_relaxed,
    MarkChange::no_second_look,      MarkChange::second_look_not_fenced,
};
std::string_view name(MarkChange change);
std::vector<Program> marks(MarkChange change = MarkChange::none);

// A row of the `shm` transport's slot buffer and its stamp (src/slot_buffer.cc,
// src/native_writer.cc, src/native_reader.cc): it is of step 1, a writer makes it step 2's and
// says so among the stamps, a reader waits for that and reads (what the control block announces
// besides may be anything). A writer that dies after `lives_for` operations leaves the lock to the
// kernel, and its reader reads without waiting: then the row is missing, or whole.
enum class StampChange {
  none,
  not_marked,       // the old stamp stays while the row is written
  stamped_first,    // the stamp before the row
  announced_first,  // the step before all that
  reader_no_lock,   // ... though it waits for what was announced
  writer_no_lock,
};
inline constexpr StampChange kStampChanges[] = {
    StampChange::not_marked,     StampChange::stamped_first,  StampChange::announced_first,
    StampChange::reader_no_lock, StampChange::writer_no_lock,
};
std::string_view name(StampChange change);
inline constexpr int kLives = -1;
std::vector<Program> stamps(int lives_for = kLives, StampChange change = StampChange::none);
int stamp_writer_operations();
std::vector<Value> stamps_initial();

// The note beside the ring in which a reader says who keeps its rows (ipc/ring/shared_note.h): one
// end writes two notes of two words, the other reads once. What it takes for a note was written as
// one.
enum class NoteChange {
  none,
  not_marked,            // the version stays even while the words are written
  written_is_relaxed,    // the words
  finished_is_relaxed,   // the version after them
  version_read_relaxed,  // the first look at it
  words_read_relaxed,
};
inline constexpr NoteChange kNoteChanges[] = {
    NoteChange::not_marked,          NoteChange::written_is_relaxed,
    NoteChange::finished_is_relaxed, NoteChange::version_read_relaxed,
    NoteChange::words_read_relaxed,
};
std::string_view name(NoteChange change);
std::vector<Program> note(NoteChange change = NoteChange::none);

}  // namespace moetap::model
