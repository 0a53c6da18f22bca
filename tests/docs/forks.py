"""Runs `perdure`, `python` and `pytest` of the pages in forks of one process, which has loaded what they load.

A page has some ten commands, and each would load Temporal's SDK and google.adk for seconds. A command is a small
program that hands its arguments, folder, environment and streams to that process, and ends as the fork ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

PROGRAMS = ("perdure", "python", "pytest")

_COMMAND = """#!{python} -SI
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
asked = {{"arguments": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "folder": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(server, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
os._exit((server.recv(1) or b"\\x01")[0])
"""


@contextmanager
def programs() -> Generator[Path]:
    """Start the process; yields a folder for the PATH. Commands that still run end with it."""
    with (
        tempfile.TemporaryDirectory() as folder,  # Sockets have short paths only.
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = f"{folder}/server"
        for name in PROGRAMS:
            program = Path(folder, name)
            program.write_text(_COMMAND.format(python=sys.executable, path=path))
            program.chmod(0o755)
        listener.bind(path)
        listener.listen(50)
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parent.parent.parent,
        )
        try:
            yield Path(folder)
        finally:
            process.terminate()
            process.communicate()


def _serve(listener: socket.socket) -> None:
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = os.getpid()
    # Standard input ends with who started this process, also where that is killed.
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _watch(connection, server)
        connection.close()


def _load() -> None:
    for module in ("google.genai.types", "pytest", "perdure.api.app", "perdure.cli.main", "perdure.worker"):
        importlib.import_module(module)
    with contextlib.suppress(ImportError):
        importlib.import_module("google.adk.runners")


def _watch(connection: socket.socket, server: int) -> NoReturn:
    """Run one command, pass signals on to it, and kill it when who asked for it is gone, or the server is."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 20)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        _run(json.loads(message), streams)
    while True:
        ready, _, _ = select.select([connection, ended], [], [], 1)
        if ended in ready:
            break
        sent = connection.recv(1) if connection in ready else b""
        if ready or os.getppid() != server:
            os.kill(child, sent[0] if sent else signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(bytes([os.waitstatus_to_exitcode(status) % 256]))
    os._exit(0)


def _run(asked: Mapping[str, Any], streams: list[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    code = 1
    try:
        _run_program(asked["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_program(arguments: list[str]) -> None:
    sys.argv = arguments
    del sys.path[0]  # The folder in which this process was started.
    if arguments[0] == "perdure":
        from perdure.__main__ import entry_point

        entry_point()
    if arguments[0] == "pytest":
        arguments[:0] = ["python", "-m"]
    if arguments[1] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[2:]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments[1]).resolve().parent))
        sys.argv = arguments[1:]
        runpy.run_path(arguments[1], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
