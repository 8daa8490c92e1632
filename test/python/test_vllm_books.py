"""The plugin's books against a worker in this process: what each request is given, and when."""

import numpy as np
import pytest
from vllm_worker import Engine, engine, rows, slots

import moetap

__all__ = ["engine"]  # a fixture


def test_each_row_is_given_once(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 6, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.schedule(2, "a", range(4, 6))
    engine.run(2, slots([1, 2], range(4, 6)))
    first = books.take(2, "a", 7, finished=False)
    assert np.array_equal(first, rows(*((1, p) for p in range(4)), (2, 4), (2, 5)))
    books.schedule(3, "a", range(6, 7))
    engine.run(3, slots([1, 2], range(6, 7)))
    assert np.array_equal(books.take(3, "a", 8, finished=True), rows((3, 6)))
    books.end("a")
    with pytest.raises(KeyError, match="'a' was never scheduled"):
        books.take(4, "a", 9, finished=True)


def test_rows_before_the_start_are_not_given(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1], 0, start=4)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1], range(4)))
    assert books.take(1, "a", 5, finished=True).shape == (0, 4, 2)


def test_a_prefix_hit_has_the_rows_of_the_first_computation(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 5, [1, 2], 0, start=0)
    books.schedule(1, "a", range(5))
    books.admit("b", 6, [1, 3], 4, start=0)
    books.schedule(1, "b", range(4, 6))  # in the same step
    engine.run(1, slots([1, 2], range(5)) | slots([1, 3], range(4, 6)))
    assert np.array_equal(books.take(1, "a", 6, finished=True), rows(*((1, p) for p in range(5))))
    books.end("a")
    assert np.array_equal(books.take(1, "b", 7, finished=True), rows(*((1, p) for p in range(6))))


def test_rejected_drafts_move_the_step_in_flight(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2, 3], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2, 3], range(4)))
    books.take(1, "a", 5, finished=False)
    books.schedule(2, "a", range(4, 8))  # three drafts, of which one is accepted
    books.schedule(3, "a", range(8, 12))  # scheduled as if all were
    engine.run(2, slots([1, 2, 3], range(4, 8)))
    engine.run(3, slots([1, 2, 3], range(6, 10)))
    assert np.array_equal(books.take(2, "a", 7, finished=False), rows((2, 4), (2, 5)))
    assert np.array_equal(books.take(3, "a", 11, finished=True), rows(*((3, p) for p in range(6, 10))))


def test_a_preempted_request_gets_the_rows_of_its_step_in_flight(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.take(1, "a", 5, finished=False)
    books.schedule(2, "a", range(4, 5))
    books.preempt("a", [1, 2])
    assert books.is_preempted("a")
    books.admit("b", 8, [2, 1], 0, start=0)  # gets the blocks, in the next step
    books.schedule(3, "b", range(8))
    engine.run(2, slots([1, 2], range(4, 5)))
    engine.run(3, slots([2, 1], range(8)))  # before the scheduler saw step 2's output
    assert np.array_equal(books.take(2, "a", 6, finished=True), rows((2, 4)))
    assert np.array_equal(books.take(3, "b", 9, finished=True), rows(*((3, p) for p in range(8))))


def test_a_resumed_request_gets_the_rows_of_its_second_run(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.take(1, "a", 5, finished=False)
    books.preempt("a", [1, 2])
    books.admit("b", 8, [2, 1], 0, start=0)
    books.schedule(2, "b", range(8))
    engine.run(2, slots([2, 1], range(8)))
    books.take(2, "b", 9, finished=True)
    books.end("b")
    books.resume("a", [5, 6], 0)
    books.schedule(3, "a", range(5))
    engine.run(3, slots([5, 6], range(5)))
    assert np.array_equal(books.take(3, "a", 6, finished=True), rows((3, 4)))


def test_a_chunk_in_flight_when_the_request_was_preempted(engine: Engine) -> None:
    """Its earlier chunk was not given yet either."""
    books = engine.books
    books.admit("a", 6, [1, 2], 0, start=1)
    books.schedule(1, "a", range(4))
    books.schedule(2, "a", range(4, 6))
    engine.run(1, slots([1, 2], range(4)))
    engine.run(2, slots([1, 2], range(4, 6)))
    books.arrived(1)
    books.preempt("a", [1, 2])
    books.admit("b", 8, [1, 2], 0, start=0)
    books.schedule(3, "b", range(8))
    engine.run(3, slots([1, 2], range(8)))
    given = books.take(2, "a", 7, finished=True)
    assert np.array_equal(given, rows((1, 1), (1, 2), (1, 3), (2, 4), (2, 5)))


def test_a_request_that_got_tokens_after_it_was_preempted(engine: Engine) -> None:
    """Its second run computes them again, and their rows are not given twice."""
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.take(1, "a", 5, finished=False)
    books.schedule(2, "a", range(4, 8))  # with drafts, all of which are accepted
    books.preempt("a", [1, 2])
    engine.run(2, slots([1, 2], range(4, 8)))
    assert np.array_equal(books.take(2, "a", 9, finished=False), rows(*((2, p) for p in range(4, 8))))
    books.resume("a", [5, 6, 7], 0)
    for step, positions in ((3, range(6)), (4, range(6, 9))):
        books.schedule(step, "a", positions)
        engine.run(step, slots([5, 6, 7], positions))
    assert np.array_equal(books.take(4, "a", 10, finished=True), rows((4, 8)))


@pytest.mark.parametrize("chunk", [2, 4])  # of the first four tokens, whose rows were given
def test_a_request_that_is_preempted_again_before_it_is_where_it_was(engine: Engine, chunk: int) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.take(1, "a", 5, finished=False)
    books.preempt("a", [1, 2])
    books.resume("a", [3], 0)
    books.schedule(2, "a", range(chunk))
    books.preempt("a", [3])  # with the chunk in flight
    engine.run(2, slots([3], range(chunk)))
    books.arrived(2)
    books.resume("a", [5, 6], 0)
    books.schedule(3, "a", range(5))
    engine.run(3, slots([5, 6], range(5)))
    assert np.array_equal(books.take(3, "a", 6, finished=True), rows((3, 4)))


def test_a_prefix_hit_of_a_request_that_was_preempted_at_once(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1], range(4)))
    books.take(1, "a", 5, finished=True)
    books.end("a")
    books.admit("b", 6, [1, 2], 4, start=2)
    books.schedule(2, "b", range(4, 6))
    books.preempt("b", [1, 2])
    engine.run(2, slots([1, 2], range(4, 6)))
    assert np.array_equal(books.take(2, "b", 7, finished=True), rows((1, 2), (1, 3), (2, 4), (2, 5)))


@pytest.mark.parametrize("preempted", [False, True])
def test_more_tokens_than_were_computed(engine: Engine, preempted: bool) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(3))
    if preempted:
        books.preempt("a", [1, 2])
    engine.run(1, slots([1, 2], range(3)))
    with pytest.raises(moetap.RowsNotPresent, match="request 'a': the row of its token 3 is missing"):
        books.take(1, "a", 5, finished=True)


def test_a_lost_row_is_an_error_that_names_it(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1], range(4)), layers=(0,))  # a layer was not captured: the step fails
    with pytest.raises(moetap.RowsNotPresent, match=r"request 'a': the row of its token 0 is missing \(step 1 failed"):
        books.take(1, "a", 5, finished=True)


def test_rows_of_a_stale_step_that_are_gone(engine: Engine) -> None:
    """Are an error if the request ended with them, and come with the next run if it did not."""
    books = engine.books
    for request, finished in (("a", False), ("b", True)):
        step = 1 if request == "a" else 3
        books.admit(request, 4, [1, 2], 0, start=0)
        books.schedule(step, request, range(4))
        engine.run(step, slots([1, 2], range(4)))
        books.take(step, request, 5, finished=False)
        books.schedule(step + 1, request, range(4, 5))
        books.preempt(request, [1, 2])
        engine.run(step + 1, slots([3, 4], range(4, 5)))  # not where it was scheduled
        if finished:
            with pytest.raises(moetap.RowsNotPresent, match="request 'b': the row of its token 4 is"):
                books.take(step + 1, request, 6, finished=True)
        else:
            assert books.take(step + 1, request, 6, finished=False) is None


def test_rows_before_a_flush_are_not_given(engine: Engine) -> None:
    books = engine.books
    books.admit("a", 4, [1, 2], 0, start=0)
    books.schedule(1, "a", range(4))
    engine.run(1, slots([1, 2], range(4)))
    books.arrived(1)
    books.flush()
    books.admit("b", 5, [1, 3], 4, start=0)
    books.schedule(2, "b", range(4, 5))
    engine.run(2, slots([1, 3], range(4, 5)))
    with pytest.raises(moetap.RowsNotPresent, match="request 'b': the row of its token 0 is stale"):
        books.take(2, "b", 6, finished=True)
