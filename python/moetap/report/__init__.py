"""One HTML page about routes: hot experts, load imbalance, similar requests, drift between runs.

`python -m moetap.report --help` says how it is used; write_report() is the same as a function.
"""

from moetap.report._command import write_report

__all__ = ["write_report"]
