// Joins workers that each publish a share of every row or step, so that a scheduler reads them as
// one.
#pragma once

#include <moetap/error.h>
#include <moetap/export.h>
#include <moetap/read_transport.h>
#include <moetap/shape.h>

#include <memory>
#include <vector>

namespace moetap {

// Joins the stages of a pipeline, each with its own MoE layers of `model`, into one transport of
// whole rows. A row is present if every stage has it present, with the same step. Otherwise it has
// the worst state of any stage: missing, then clobbered, stale, unverified. If a window has several
// steps and the stages' rows are of different steps, the row is missing.
//
// poll() returns the last step whose outcome every stage knows. wait_for() waits for all stages
// within one timeout. It throws StepFailed if the step failed in any stage, once its outcome is
// known in all. read() reads from each stage. A window of several steps must end with a step that
// wait_for() or poll() of this object has reached. lend() always returns nullopt. After a put()
// that throws TimeoutError, its rows may be missing.
//
// ArgumentError unless each of the model's layers is in one stage, and top_k, num_experts and
// num_slots are equal.
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> join_stages(
    ModelShape model, std::vector<std::unique_ptr<SlotReadTransport>> stages);

// Tensor-parallel ranks that each publish a part of every step's tokens (SequenceParts::published),
// joined into one transport. A row is present if one of the parts has it. poll() and wait_for() are
// as above. If a part of a step failed, the other parts' rows stay valid. Windows must be of one
// step, as in a Ledger's plans; ArgumentError otherwise. MismatchError if two parts have a row of
// the same slot and step. lend() always returns nullopt. ArgumentError unless shapes and num_slots
// are equal.
[[nodiscard]] MOETAP_API std::unique_ptr<SlotReadTransport> join_parts(
    std::vector<std::unique_ptr<SlotReadTransport>> parts);

}  // namespace moetap
