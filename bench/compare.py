"""The table and the picture of a benchmark run."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}

LEDGER_REQUESTS = 256  # of entries ledger/step/<of>/<size>, unless that is their number

# The comparisons: a row's title, the first word of its entries, and its limit.
ROWS = (
    ("publish", "publish", "scatter"),
    ("publish, host part", "publish_host", "scatter"),
    ("read", "read", "gather"),
    ("extract a request", "extract", "extract"),
    ("end to end", "end_to_end", None),
)
HEADER = ("", "model", "tokens", "limit", "python", "shm", "device",
          "shm:limit", "device:limit", "python:shm", "python:device", "shm:device")  # fmt: skip


def medians(benchmarks):
    """{name: microseconds}"""
    return {
        b["run_name"]: b["real_time"] * UNITS[b["time_unit"]]
        for b in benchmarks
        if b.get("aggregate_name") == "median"
    }


def ordered(names, prefix):
    """The (model, tokens) of entries "prefix/who/model/tokens", in the order they ran."""
    parts = (name.split("/") for name in names if name.startswith(prefix + "/"))
    return list(dict.fromkeys((p[2], int(p[3])) for p in parts if len(p) == 4))


def time(value):
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def ratio(a, b):
    return "" if a is None or b is None else f"{a / b:.2f}"


def step_rows(times):
    for title, what, limit_of in ROWS:
        for model, tokens in ordered(times, what):
            def entry(*words):
                return times.get("/".join((*words, model, str(tokens))))

            limit = entry("limit", limit_of) if limit_of else None
            python, shm, device = (entry(what, who) for who in ("python", "shm", "device"))
            if what == "publish":
                limit = None  # it holds more than a scatter: see the host part
            if python is shm is device is None:
                continue
            yield (title, model, str(tokens), time(limit), time(python), time(shm), time(device),
                   ratio(shm, limit), ratio(device, limit), ratio(python, shm),
                   ratio(python, device), ratio(shm, device))  # fmt: skip
            if once := entry(what, "python_one_copy"):
                yield (f"{title}, one copy", model, str(tokens), "", time(once), "", "", "", "",
                       ratio(once, shm), ratio(once, device), "")  # fmt: skip


def other_rows(times):
    for name, value in times.items():
        what, *rest = name.split("/")
        if what == "capture":
            device, model, tokens = rest
            yield (f"capture, {device} device", model, tokens, "", "", "", time(value))
        elif "_slots" in what or "_steps" in what:
            action, of = what.split("_")
            if rest[0] == "shm":
                device = times.get("/".join((what, "device", rest[1])))
                yield (f"{action} 256, {rest[1]} {of}", "qwen3-30b-a3b", "256", "", "", time(value),
                       time(device))  # fmt: skip


def ledger_lines(times):
    for name, value in times.items():
        what, *rest = name.split("/")
        if what != "ledger":
            continue
        action, of, size = rest
        if action == "step":
            requests = int(size) if of == "requests" else LEDGER_REQUESTS
            yield (f"ledger, a step with {size} {of}: {time(value)}, "
                   f"{1000 * value / requests:.0f} ns a request")  # fmt: skip
        else:
            yield (f"ledger, the plan of {size} {of}: {time(value)}, "
                   f"{1000 * value / int(size):.1f} ns a row")  # fmt: skip


PACKAGE_HEADER = ("through the Python package", "package", "C++", "more", "package:C++", "package:python")


def package_rows(times):
    """The package's, with the same of the C++ library and of the Python design."""
    for name, value in times.items():
        what, _, same = name.partition("/")
        if what != "package":
            continue
        action, *rest = same.split("/")
        library = times.get(same)
        design = times.get("/".join((action, "python", *rest[1:])))
        more = "" if library is None else time(value - library)
        yield same, time(value), time(library), more, ratio(value, library), ratio(value, design)


def aligned(rows, left):
    """Lines of these cells, the first `left` columns to the left, with a rule after the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return lines


def table(times):
    """Medians in microseconds; "a:b" is a's time over b's."""
    rows = [HEADER, *step_rows(times), *other_rows(times)]
    rows = [row + ("",) * (len(HEADER) - len(row)) for row in rows]
    lines = ["median times in us; a:b is the time of a over that of b", *aligned(rows, 2)]
    for how, waiter in (("spin", "spins"), ("sleep", "sleeps")):
        if value := times.get(f"wake/{how}"):
            lines.append(f"to wake a process that {waiter}: {time(value)}")
    lines += ledger_lines(times)
    if package := list(package_rows(times)):
        lines += ["", *aligned([PACKAGE_HEADER, *package], 1)]
    return "\n".join(lines)


SERIES = (("python", "Python design", "tab:gray"), ("shm", "shm", "tab:blue"),
          ("device", "device", "tab:orange"))  # fmt: skip


def draw(times, path):
    """Time against tokens, a panel a model and call. False if there is nothing to draw."""
    rows = [row for row in ROWS if ordered(times, row[1]) and row[1] != "publish_host"]
    models = list(dict.fromkeys(m for row in rows for m, _ in ordered(times, row[1])))
    if not rows:
        return False
    figure, axes = plt.subplots(len(rows), len(models), squeeze=False, sharex=True, sharey="row",
                                figsize=(4 * len(models) + 1, 3 * len(rows) + 1))  # fmt: skip
    for i, (title, what, limit_of) in enumerate(rows):
        for j, model in enumerate(models):
            axis = axes[i][j]
            lines = [(f"{what}/{who}", label, color) for who, label, color in SERIES]
            if limit_of:
                lines.append((f"limit/{limit_of}", f"limit: plain {limit_of}", "black"))
            for prefix, label, color in lines:
                points = sorted(
                    (int(name.rsplit("/", 1)[1]), value)
                    for name, value in times.items()
                    if name.startswith(f"{prefix}/{model}/")
                )
                if points:
                    axis.loglog(*zip(*points), label=label, color=color, marker="o", markersize=3,
                                linestyle=":" if "limit" in prefix else "-")  # fmt: skip
            axis.grid(True, which="major", alpha=0.3)
            axis.set_title(f"{title}: {model}", fontsize=10)
            if i == len(rows) - 1:
                axis.set_xlabel("tokens of the step")
            if j == 0:
                axis.set_ylabel("median time (us)")
                axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    return True
