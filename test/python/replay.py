"""Makes the calls of a simulated history through the package, and compares what comes of each.

The history is that of test/simulation, with --calls: a line of JSON for each call. A worker's steps
are run when its scheduler takes them in, so that all is as it was there, whatever takes how long.
"""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import moetap

PATIENCE = 30.0  # seconds
RING_DEPTH = 4
UNKNOWN = object()  # a result that depends on how long things take


def described(value: Any) -> Any:
    """A result as the trace has it."""
    if isinstance(value, moetap.RowPlan):
        assert (value.windows[:, 0] == value.windows[:, 1]).all()
        verdicts = [[positions.start, positions.stop, int(state)] for positions, state in value.verdicts]
        return {"request": value.request, "positions": ends(value.positions), "slots": value.slots.tolist(),
                "steps": value.windows[:, 1].tolist(), "blocks": value.blocks.tolist(), "verdicts": verdicts,
                "last_step": value.last_step}
    if isinstance(value, moetap.MovePlan):
        return {"step": value.step, "from": value.from_slots.tolist(), "to": value.to_slots.tolist(),
                "last_step": value.last_step}
    if isinstance(value, moetap.FillPlan):
        return {"step": value.step, "slots": value.slots.tolist(), "last_step": value.last_step}
    if isinstance(value, moetap.Routes):
        return {"positions": ends(value.positions), "states": value.states.tolist(),
                "rows": value.rows.tobytes().hex()}
    return value


def ends(positions: range) -> list[int]:
    return [positions.start, positions.stop]


class Stage:
    """A worker's stage: a Capturer, and what it is to do when its scheduler takes it in."""

    def __init__(self, instance: str, model: moetap.ModelShape, options: dict[str, Any]) -> None:
        self.options = options
        self.endpoint = moetap.Endpoint(
            instance, model.with_layers(options["layers"]), stage=options["stage"],
            num_slots=options["num_slots"], max_tokens=options["max_tokens"],
            ring_depth=RING_DEPTH, timeout=PATIENCE)
        device_options: dict[str, Any] = {}
        if options["transport"] == "device":
            device_options = {"drafts": options["drafts"], "staging_depth": options["staging_depth"],
                              "host_cache": "per_request" if options["per_request"] else "scheduler"}
        self.capturer = moetap.Capturer(
            self.endpoint, "host", transport=options["transport"], dp_rank=options["dp_rank"],
            dp_size=options["dp_size"], layout=options["layout"],
            shared_expert_columns=options["shared_expert_columns"], **device_options)
        self.capturer.bind_all()
        self.columns = options["top_k"] + options["shared_expert_columns"]
        self.stream = self.capturer.device.make_stream()
        self.waiting: collections.deque[dict[str, Any]] = collections.deque()
        self.failures: list[int] = []  # that it must be told of
        if options["graph_tokens"]:
            self.record_graphs()

    def record_graphs(self) -> None:
        tokens = self.options["graph_tokens"]
        rows = tokens if self.options["layout"] == "local" else tokens * self.options["dp_size"]
        arrays = [self.capturer.device.empty((rows, self.options["row_stride"]), self.options["dtype"])
                  for _ in self.options["layers"]]
        self.in_graphs = [array.numpy() for array in arrays]
        self.graphs = {}
        for name, lacking in (("whole", -1), ("lacking", self.options["lacking"])):
            with self.capturer.graph(tokens, self.stream):
                self.stream.begin_capture()
                for i, layer in enumerate(self.options["layers"]):
                    if i != lacking:
                        self.capturer.capture(layer, self.in_graphs[i][:, :self.columns])
                self.graphs[name] = self.stream.end_capture()

    def run_until(self, step: float, poll: Callable[[], object]) -> None:
        """Runs the steps that wait, up to this one, so that the reader finds them."""
        while self.waiting and self.waiting[0].get("step", 0) <= step:
            todo = self.waiting.popleft()
            if todo["call"] == "step":
                self.run(todo)
                self.wait_until_readable(todo["step"], poll)
            elif todo["call"] == "accept_in_worker":
                self.capturer.accept(todo["step"], todo["request"], todo["num_tokens"], todo["accepted"])
            else:
                self.capturer.end_request(todo["request"], todo["how"])

    def run(self, todo: dict[str, Any]) -> None:
        wanted = [tuple(part) for part in todo["wanted"]] if "wanted" in todo else None
        step = self.capturer.step(
            todo["step"], todo["num_tokens"], padded_tokens=todo["padded_tokens"], dp_tokens=todo["dp_tokens"],
            requests=[tuple(span) for span in todo["requests"]], wanted=wanted, stream=self.stream)
        captures = [(capture["layer"], self.picks_of(capture["picks"])) for capture in todo["captures"]]
        with step:
            if graph := todo.get("graph"):
                for layer, picks in captures[:todo["in_graph"]]:
                    self.in_graphs[layer][:] = picks
                self.stream.launch(self.graphs[graph])
            for layer, picks in captures[todo.get("in_graph", 0):]:
                self.capturer.capture(self.options["layers"][layer], picks[:, :self.columns])
            if todo["ends"] == "published":
                slots = todo["slots"]
                step.publish(np.array(slots, np.int64) if todo["step"] % 2 else slots)
        self.stream.synchronize()
        # There is room in each ring here: a step that was dropped in the simulation is given up.
        if todo["fails"] or todo["ends"] == "dropped":
            self.failures.append(todo["step"])

    def wait_until_readable(self, step: int, poll: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self.capturer.finalize(step, 0.01)
            except moetap.TimeoutError:
                assert time.monotonic() < end
                if self.options["per_request"]:  # it may wait for room in its ring
                    poll()

    def picks_of(self, text: str) -> np.ndarray:
        return np.frombuffer(bytes.fromhex(text), self.options["dtype"]).reshape(-1, self.options["row_stride"])

    def finish(self) -> None:
        told = [failure.step for failure in self.capturer.take_failures()]
        assert told == self.failures, f"failures of {told} are told, not of {self.failures}"


class Worker:
    """A data-parallel worker: its stages, and the scheduler that reads them."""

    def __init__(self, instance: str, model: moetap.ModelShape, block_size: int) -> None:
        self.instance = instance
        self.model = model
        self.block_size = block_size
        self.stages: list[Stage] = []
        self.plans: dict[str, Any] = {}  # by what they say
        self.reader: Any = None
        self.pending: Any = None
        self.views: collections.deque[moetap.RoutesView] = collections.deque()
        self.calls = 0

    def open_reader(self) -> None:
        engine = self.stages[0].endpoint.replace(shape=self.model)
        transport = self.stages[0].options["transport"]
        if self.stages[0].options["per_request"]:
            self.reader = moetap.RequestReader(engine)
        elif len(self.stages) == 1:
            self.reader = moetap.Reader(engine, transport)
        else:
            layers = [stage.options["layers"] for stage in self.stages]
            topology = moetap.Topology(pp_size=len(layers), stage_layers=layers)
            self.reader = moetap.Reader(engine, transport, topology=topology)
        if isinstance(self.reader, moetap.Reader):
            self.pending = moetap.PendingRows(self.ledger, self.reader)

    def finish(self) -> None:
        for stage in self.stages:
            stage.run_until(float("inf"), self.reader.poll)
            stage.finish()

    def close(self) -> None:
        for view in self.views:
            view.release()
        if self.reader:
            self.reader.close()
        for stage in self.stages:
            stage.capturer.close()

    # --- what the trace has -----------------------------------------------------------------------

    def make(self, line: dict[str, Any], store: moetap.BlockStore | None) -> None:
        """Makes a call, and compares its result, or the error's class."""
        self.calls += 1
        name, result, error = line.pop("call"), line.pop("result", None), line.pop("error", None)
        line.pop("worker")
        if name in ("store_block", "load_blocks"):
            line["store"] = store
        method = getattr(self, f"call_{name}", None)
        made: Any = None
        raised, why = None, ""
        try:
            made = method(**line) if method else self.tell_ledger(name, line)
        except moetap.Error as refused:
            raised, why = type(refused).__name__, str(refused)
        assert raised == error, f"{name}: {raised or 'no error'} ({why}) where {error or 'none'} was"
        saying = described(made)
        if error is None and result is not None and made is not UNKNOWN:
            assert saying == result, f"{name}: {saying} where {result} was"
        if isinstance(made, (moetap.RowPlan, moetap.MovePlan, moetap.FillPlan)):
            self.plans[json.dumps(saying, sort_keys=True)] = made

    def tell_ledger(self, name: str, arguments: dict[str, Any]) -> Any:
        """By the call itself, or by that for many, with lists or arrays."""
        if "positions" in arguments:
            arguments["positions"] = range(*arguments["positions"])
        if "moves" in arguments:
            arguments["moves"] = [tuple(move) for move in arguments["moves"]]
        for key in ("blocks", "new_blocks", "accepted"):
            if key in arguments and self.calls % 3 == 0:
                arguments[key] = np.array(arguments[key], np.int64)
        if self.calls % 2 and name in ("schedule", "accept", "finish") and "accepted" not in arguments:
            return self.tell_many(name, arguments)
        return getattr(self.ledger, name)(**arguments)

    def tell_many(self, name: str, arguments: dict[str, Any]) -> Any:
        requests = np.array([arguments["request"]], np.uint64)
        if name == "accept":
            return self.ledger.accept_many(arguments["step"], requests, [arguments["num_tokens"]])
        if name == "finish":
            return self.ledger.finish_many(requests, [arguments["num_tokens"]])[0]
        positions, blocks = arguments["positions"], arguments["new_blocks"]
        return self.ledger.schedule_many(arguments["step"], requests, [positions.start], np.array([positions.stop]),
                                         blocks, [0, len(blocks)])

    def plan_of(self, saying: Any) -> Any:
        return self.plans[json.dumps(saying, sort_keys=True)]

    def call_Ledger(self, num_blocks: int, block_size: int, drafts: Any) -> None:
        self.ledger = moetap.Ledger(num_blocks, block_size, drafts)
        self.open_reader()

    def call_took_in(self, stage: int, step: int) -> None:
        self.stages[stage].run_until(step, self.reader.poll)
        self.reader.poll()

    def call_num_wanting(self) -> int:
        return self.ledger.num_wanting

    def call_poll(self) -> Any:
        last = self.reader.poll()
        return UNKNOWN if self.stages[0].options["per_request"] else last

    def call_wait_for(self, step: int) -> None:
        self.reader.wait_for(step, PATIENCE)

    def call_read_rows(self, plan: Any, wait: bool = True) -> moetap.Routes:
        return moetap.read_rows(self.reader, self.plan_of(plan), 0, wait=wait)

    def call_view_rows(self, plan: Any) -> None:
        view = moetap.view_rows(self.reader, self.plan_of(plan), "the replay", 0)
        for position, state in zip(view.positions, view.states, strict=True):
            if state == moetap.RowState.present:
                assert view.row(position).shape == (self.model.num_layers, self.model.top_k)
        self.views.append(view)

    def call_detach(self) -> moetap.Routes:
        return self.views.popleft().detach()

    def call_append(self, to: Any, next: Any) -> moetap.MovePlan:
        plan = self.plan_of(to)
        plan.append(self.plan_of(next))
        return plan

    def call_move_rows(self, plan: Any) -> int:
        return moetap.move_rows(self.reader, self.plan_of(plan), 0)

    def call_fill_rows(self, plan: Any, rows: str) -> None:
        moetap.fill_rows(self.reader, self.plan_of(plan), bytes.fromhex(rows), 0)

    def call_store_block(self, store: moetap.BlockStore, key: str, block: int) -> bool:
        return moetap.store_block(store, bytes.fromhex(key), self.ledger, self.reader, block, 0)

    def call_load_blocks(self, store: moetap.BlockStore, keys: list[str], **where: int) -> int:
        return moetap.load_blocks(store, [bytes.fromhex(key) for key in keys], self.ledger, self.reader,
                                  timeout=0, **where)

    def call_add(self, plan: Any) -> None:
        self.pending.add(self.plan_of(plan))

    def call_take_early(self, blocks: list[int]) -> None:
        self.pending.take_early(blocks, 0)

    def call_collect(self, request: int) -> moetap.Routes:
        return self.pending.collect(request, 0)

    def call_take(self, request: int, positions: list[int]) -> moetap.Routes:
        self.stages[0].run_until(float("inf"), self.reader.poll)
        return self.reader.take(request, range(*positions), PATIENCE)


def replay(lines: Iterable[str], instance: str) -> int:
    """Replays one history. Returns the number of calls; AssertionError for the first that differs."""
    workers: dict[int, Worker] = {}
    model: Any = None
    store: Any = None
    made = 0
    with contextlib.ExitStack() as open_workers:
        for made, text in enumerate(lines, 1):
            line = json.loads(text)
            if line["call"] == "model":
                block_size = line["block_size"]
                model = moetap.ModelShape(line["layers"], line["top_k"], line["num_experts"])
                store = moetap.BlockStore.in_memory(model, block_size=block_size, max_bytes=2**20)
                continue
            number = line["worker"]
            if number not in workers:
                workers[number] = Worker(f"{instance}-{number}", model, block_size)
                open_workers.callback(workers[number].close)
            worker = workers[number]
            if line["call"] == "stage":
                worker.stages.append(Stage(worker.instance, model, line))
            elif line["call"] in ("step", "accept_in_worker", "end_request"):
                worker.stages[line["stage"]].waiting.append(line)
            else:
                worker.make(line, store)
        for worker in workers.values():
            worker.finish()
    return made
