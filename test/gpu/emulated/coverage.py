"""Which instructions of the library's kernels ran, from the emulator's report (EMU_COVERAGE).

coverage.py REPORT [KERNEL]: a line for each kernel, and the total; those of KERNEL that did not run.
Kernels that were never launched are in no report.
"""

import collections
import subprocess
import sys


def read(path):
    """{kernel: {index: (hits, text)}} of all processes that wrote to the report."""
    kernels = collections.defaultdict(dict)
    with open(path, errors="replace") as report:
        for line in report:
            fields = line.rstrip("\n").split("\t")
            if fields[0] != "C" or "4test" in fields[1]:  # a kernel of moetap::test
                continue
            _, kernel, index, hits, _, _, text = fields
            before = kernels[kernel].get(int(index), (0, text))[0]
            kernels[kernel][int(index)] = (before + int(hits), text)
    return kernels


def plain(names):
    shown = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True)
    return [name.split("run_cuda_block<moetap::")[-1].split(">(")[0] for name in shown.stdout.split("\n")]


def main():
    kernels = read(sys.argv[1])
    ran_of_all = all_of_all = 0
    for name, shown in sorted(zip(kernels, plain(kernels)), key=lambda pair: pair[1]):
        instructions = kernels[name].values()
        ran = sum(hits > 0 for hits, _ in instructions)
        ran_of_all += ran
        all_of_all += len(instructions)
        print(f"{ran:6} of {len(instructions):6}  {100 * ran / len(instructions):5.1f}%  {shown}")
        if len(sys.argv) > 2 and sys.argv[2] == shown:
            for index, (hits, text) in sorted(kernels[name].items()):
                if not hits:
                    print(f"        {index:6}  {text}")
    print(f"{ran_of_all:6} of {all_of_all:6}  {100 * ran_of_all / all_of_all:5.1f}%  {len(kernels)} kernels")


if __name__ == "__main__":
    main()
