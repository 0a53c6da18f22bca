"""Lets the other processes of a run do what one leaves undone that crashed; xdist 3.8 may wait for good there.

A plugin of pytest, which `tests/conftest.py` brings. xdist gives the others all files of a process that crashed, also
those that are done: one without a test to run makes nothing happen, and a process does not run its last test before it
has the next. So here a process is given files until it has two tests, or none is left.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Share by files as xdist does, where that was asked for."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


class ByFile(LoadFileScheduling):
    """xdist's sharing by files, that goes on behind a crash."""

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # It has just begun, for one that crashed, and is asked again when it knows its tests.
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
