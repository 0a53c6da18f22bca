"""What the benchmarks share: workers in processes of their own, their memory, and how results are printed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client

from perdure.config import ConnectionConfig, connect

READY = "ready"
"""What a worker prints when it has started."""


@asynccontextmanager
async def process(*arguments: str, python: str = sys.executable) -> AsyncGenerator[Process]:
    """Run a module by its name, or a script by its path, until the end of the block, at the latest."""
    how = () if arguments[0].endswith(".py") else ("-m",)
    child = await asyncio.create_subprocess_exec(python, *how, *arguments, stdin=PIPE, stdout=PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def read_line(child: Process) -> str:
    """Return the next line that a process prints.

    Raises:
        RuntimeError: It ended instead.
    """
    assert child.stdout is not None
    line = await child.stdout.readline()
    if not line:
        raise RuntimeError(f"process {child.pid} ended with exit code {await child.wait()}; what it said is above")
    return line.decode().strip()


def tell_ready() -> None:
    """Say that this process has started; what it prints from here on goes where its errors go.

    Nobody reads on: with the pipe full of warnings, it would stand still for good.
    """
    print(READY, flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


async def ready(child: Process) -> Process:
    """Wait until a worker's process says that it has started."""
    while await read_line(child) != READY:
        pass
    return child


def resident_kb(pid: int) -> int:
    """Return the memory of a process, what was swapped out included, in kilobytes; Linux only."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("VmRSS:", "VmSwap:")))


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def connected(address: str) -> Client:
    """Return a client of a benchmark's server, with Perdure's payloads."""
    return await connect(ConnectionConfig(address=address, namespace="default", tls=False))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def print_report(report: Mapping[str, Any], *, table: bool) -> None:
    """Print results as a table if `table`, and then as one line of JSON."""
    if table:
        for name, value in _flat(report):
            print(f"{name:48} {value}")
    print(json.dumps(_rounded(report)), flush=True)


def _flat(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in report.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType] -- JSON
        else:
            rows.append((f"{prefix}{name}", _rounded(value)))
    return rows


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType] -- JSON
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType] -- JSON
    return value
