#!/usr/bin/env python3
"""number_refused.py SOURCE_ROOT COMPILER...: what must not compile, where only a compiler can tell.

A constant becomes a number by itself, and an integer that is known only at run time does not. No
concept shows that. Each line that must not compile stands beside one that does.
"""

import subprocess
import sys

# (compiles, does not)
LINES = [
    ("Step f() { return 5; }", "Step f(std::uint64_t x) { return x; }"),
    ("RequestId f(std::uint64_t x) { return RequestId(x); }", "RequestId f(int x) { return x; }"),
    ("Slot f() { return -1; }", "Slot f(std::int64_t x) { return x; }"),
    ("bool f(BlockId b) { return b == 3; }", "bool f(BlockId b, int x) { return b == x; }"),
    ("bool f(Step s) { return s < 3; }", "bool f(Step s, Slot x) { return s < x.value(); }"),
    ("Step f() { return 0; }", "Step f() { return -1; }"),
    ("RequestId f() { return 1; }", "RequestId f() { return 1.5; }"),
    ("std::vector<Slot> f() { return {1, 2}; }", "std::vector<Slot> f(int x) { return {1, x}; }"),
    ("void g(RequestId, Step); void f(RequestId r, Step s) { g(r, s); }",
     "void g(RequestId, Step); void f(RequestId r, Step s) { g(s, r); }"),
]


def compiles(compiler, root, lines):
    source = "#include <moetap/types.h>\n#include <vector>\nusing namespace moetap;\n"
    for i, line in enumerate(lines):
        source += f"namespace n{i} {{ {line} }}\n"
    return subprocess.run(
        [*compiler, "-std=c++20", f"-I{root}/lib/include", "-fsyntax-only", "-x", "c++", "-"],
        input=source, text=True, capture_output=True).returncode == 0


def main():
    root, compiler = sys.argv[1], sys.argv[2:]
    wrong = []
    if not compiles(compiler, root, [good for good, _ in LINES]):
        wrong.append("does not compile: one of the lines that should")
    for _, bad in LINES:
        if compiles(compiler, root, [bad]):
            wrong.append(f"compiles: {bad}")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
