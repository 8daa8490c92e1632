"""Prints the first C++ block of a section of README.md: what a user copies."""
import re
import sys

text, section = open(sys.argv[1], encoding="utf-8").read(), sys.argv[2]
found = re.search(rf"^## {re.escape(section)}\n.*?^```cpp\n(.*?)^```", text, re.M | re.S)
if not found:
    sys.exit(f"{sys.argv[1]} has no C++ block in its section '{section}'")
sys.stdout.write(found.group(1))
