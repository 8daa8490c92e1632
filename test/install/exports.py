"""What our libraries export: nothing of others, and of ours what the headers mark.

Each exported symbol has to be of namespace moetap. A header has to mark it, or the class that it is
of, with MOETAP_API (installed ones) or MOETAP_INTERNAL_API (others), and to name it. The type of
each exception has to be exported, or programs cannot catch it.
Arguments: the source directory, and the libraries.
"""

import pathlib
import re
import subprocess
import sys

DESCRIBES = re.compile(r"^[\w -]*\b(?:for|to) (?=moetap::)")  # "typeinfo name for "
CLASS = re.compile(r"(?:class|struct)\s+(?:\[\[\w+\]\]\s+)?(MOETAP_\w*API)\s+(\w+)")
FUNCTION = re.compile(r"(MOETAP_\w*API)\b[^;{(]*?(\w+)\s*\(")


def code_of(header):
    return re.sub(r"//.*|^#.*", "", header.read_text(), flags=re.MULTILINE)


def marked_names(root):
    """By the name of what is marked: the words of the headers that mark it."""
    names = {}
    for header in (h for room in ("lib", "ipc", "gpu") for h in (root / room).rglob("*.h*")):
        code = code_of(header)
        expected = "MOETAP_API" if header.parent.name == "moetap" else "MOETAP_INTERNAL_API"
        for macro, name in CLASS.findall(code) + FUNCTION.findall(code):
            if macro == expected:
                names.setdefault(name, set()).update(re.findall(r"\w+", code))
    return names


def exported(library):
    """Demangled."""
    lines = subprocess.run(["nm", "--dynamic", "--demangle", "--defined-only", library],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(" ", 2)[2] for line in lines]


def path_of(symbol):
    """["moetap", "Ledger", "admit"], or nothing."""
    symbol = DESCRIBES.sub("", symbol)
    while (shorter := re.sub(r"<[^<>]*>", "", symbol)) != symbol:
        symbol = shorter
    match = re.search(r"(?:^| )moetap(?:::~?\w+)+", symbol.split("(")[0])
    return re.findall(r"\w+", match[0]) if match else []


def fault_of(symbol, names):
    path = path_of(symbol)
    if not path:
        return "is not in namespace moetap"
    first = next((i for i, word in enumerate(path) if word in names), None)
    if first is None:
        return "is marked in no header"
    unknown = [word for word in path[first:] if word not in names[path[first]]]
    return f"is not named by the header that marks {path[first]}" if unknown else None


def main(root, *libraries):
    root = pathlib.Path(root)
    names = marked_names(root)
    symbols = {library: exported(library) for library in libraries}
    faults = [f"{library} exports nothing" for library in libraries if not symbols[library]]
    faults += [f"{pathlib.Path(library).name}: {symbol} {fault}" for library in libraries
               for symbol in symbols[library] if (fault := fault_of(symbol, names))]
    types = {path_of(symbol)[-1] for library in libraries for symbol in symbols[library]
             if symbol.startswith("typeinfo for moetap::")}
    faults += [f"the type of {name} is not exported"
               for _, name in CLASS.findall(code_of(root / "lib/include/moetap/error.h"))
               if name not in types]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
