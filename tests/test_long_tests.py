"""What `make test` leaves out is there, and others of its folder are not left out."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase

import pytest

from tests.long_tests import LONG, is_long


@pytest.mark.process
def test_each_pattern_names_tests_and_leaves_others_of_the_folder() -> None:
    files = sorted({pattern.partition("::")[0] for pattern in LONG})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert names, done.stderr
    assert [pattern for pattern in LONG if not any(fnmatchcase(name, pattern) for name in names)] == []
    stay = {name.rpartition("/")[0] for name in names if not is_long(name)}
    assert {name.rpartition("/")[0] for name in names} == stay


def test_what_no_pattern_names_is_not_long() -> None:
    assert is_long("tests/a.py::test_b[c]", ["tests/a.py::test_b[[]*"])
    assert not is_long("tests/a.py::test_b", ["tests/a.py::test_b[[]*"])
