"""What gpu_check.py makes of programs that fail, find wrong rows, miss goals or hang."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).with_name("gpu_check.py")
PASSED = "echo '[  PASSED  ] 3 tests.'"


def figure(met):
    return {"figures": [{"name": "snapshot", "value": 1, "unit": "us", "goal": "<= 2", "met": met}]}


def served(wrong):
    return {"runs": [{"transport": "shm", "rows_verified": 7, "rows_wrong": wrong}]}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.build = pathlib.Path(directory.name)
        self.program("test/gpu/gpu_tests", PASSED)
        self.measured(figure(True))
        self.serves(served(0))

    def program(self, name, script):
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)

    def measured(self, report):
        self.program("bench/gpu_check/moetap_gpu_check", f"echo '{json.dumps(report)}' >\"$2\"")

    def serves(self, report, status=0):
        self.program(
            "examples/simulator/moetap-demo", f"echo '{json.dumps(report)}' >\"$4\"; exit {status}"
        )

    def check(self, status, *options):
        """The lines of the table, by what they begin with."""
        done = subprocess.run(
            [sys.executable, SCRIPT, "--build", self.build, "--device", "host", *options],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout

    def test_shows_rows_verified_and_wrong(self):
        table = self.check(0)
        self.assertRegex(table, r"rows verified/shm +7\.000 rows")
        self.assertRegex(table, r"rows wrong/shm +0\.000 rows +<= 0 +met")

    def test_a_missed_goal_is_shown_and_no_failure(self):
        self.measured(figure(False))
        self.assertIn("MISSED", self.check(0))

    def test_a_wrong_row_is_a_failure(self):
        for status in (0, 1):
            self.serves(served(2), status)
            self.assertRegex(self.check(1), r"rows wrong/shm +2\.000 rows +<= 0 +MISSED")

    def test_a_demo_without_rows_is_a_failure(self):
        self.serves({"runs": []})
        self.assertRegex(self.check(1), r"demo +failed")

    def test_a_failed_part_is_a_failure(self):
        self.program("test/gpu/gpu_tests", f"{PASSED}; exit 1")
        self.assertRegex(self.check(1), r"tests +failed")
        self.program("test/gpu/gpu_tests", "true")  # ran none
        self.assertRegex(self.check(1), r"tests +failed")
        self.program("test/gpu/gpu_tests", PASSED)
        self.program("bench/gpu_check/moetap_gpu_check", "exit 1")
        self.assertRegex(self.check(1), r"measure +failed")

    def test_all_parts_share_the_time_and_nothing_outlives_it(self):
        self.program("test/gpu/gpu_tests", "sleep 50 & wait")
        started = time.monotonic()
        table = self.check(1, "--seconds", "1")
        self.assertLess(time.monotonic() - started, 40)
        self.assertRegex(table, r"tests +failed +not done in the 1 s that were left")
        self.assertRegex(table, r"measure +not run")
        self.assertRegex(table, r"demo +not run")


if __name__ == "__main__":
    unittest.main()
