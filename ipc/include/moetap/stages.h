// Workers that each publish a share of what a scheduler wants to read as one.
#pragma once

#include <moetap/error.h>
#include <moetap/read_transport.h>
#include <moetap/shape.h>

#include <memory>
#include <vector>

namespace moetap {

// The stages of a pipeline, each with its own MoE layers of `model`, as one transport of whole
// rows. A row is present when every stage has it present, of the same step; else its state is that
// of the stage that knows the worst: missing, then clobbered, stale, unverified. Where a window has
// several steps and the stages' rows are of different ones, the row is missing.
//
// poll() is the last step that every stage has come to. wait_for() waits for all of them
// within one limit, and throws StepFailed if it failed in any, once its outcome is known in all.
// read() is a read of each stage; a window of several steps must end with a step that wait_for() or
// poll() of this object has shown to be there. lend() is always null. A put() that runs into a
// time limit may leave rows that are missing.
//
// ArgumentError unless each of the model's layers is in one stage, and top_k, num_experts and
// num_slots are equal.
std::unique_ptr<SlotReadTransport> join_stages(
    ModelShape model, std::vector<std::unique_ptr<SlotReadTransport>> stages);

// Tensor-parallel ranks that each publish a part of every step's tokens (SequenceParts::published),
// as one transport. A row is present where one of them has it. poll() and wait_for() as above;
// where a part of a step failed, the other parts' rows of it stand. Windows must be of one step, as
// a Ledger's plans have them; ArgumentError otherwise. MismatchError if two parts have a row of one
// slot and step. lend() is always null. ArgumentError unless shapes and num_slots are equal.
std::unique_ptr<SlotReadTransport> join_parts(
    std::vector<std::unique_ptr<SlotReadTransport>> parts);

}  // namespace moetap
