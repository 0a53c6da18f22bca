"""A shell in which the commands of a page are typed, one after the other."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_SERVES = re.compile(r"^(?:exec )?(?:perdure (?:dev|worker|api|codec)(?![\w-])|curl .*-N\b|perdure events\b.*--follow)")
"""Commands that run until they are ended."""

_READY = re.compile(r"Ctrl-C ends it|perdure: (?:serving|HTTP API at|decrypting at)|^(?:data|id|:)", re.MULTILINE)
"""What they print when they are ready."""

_PATIENCE = 90.0


class CommandFailed(Exception):
    """A command did not end as the page says."""


class Shell:
    """Bash, in a folder. What serves runs in the background until the shell ends."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._served: list[Path] = []
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        # A refusal over HTTP is a failure.
        self.run('curl() { command curl --silent --show-error --fail-with-body "$@"; }')

    def close(self) -> None:
        """End the shell, and all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, command: str) -> tuple[int, str]:
        """Type a command; returns its exit code and what it printed (of one that serves, until it is ready)."""
        bare = re.sub(r"\s*&$", "", re.sub(r"(^|\s)#.*", "", command).strip())
        if _SERVES.match(bare):
            return 0, self._serve(bare)
        end = f"end-of-command-{os.urandom(8).hex()}"
        self._type(f"eval {shlex.quote(command)} </dev/null 2>&1; printf '\\n%s %s\\n' {end} $?")
        assert self._process.stdout is not None
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith(end):
                return int(line.split()[1]), "".join(printed).removesuffix("\n")
            printed.append(line)
        raise CommandFailed(f"the shell ended:\n{''.join(printed)}")

    def log(self) -> str:
        """Return what was printed by all that serves."""
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self._served)

    def _serve(self, command: str) -> str:
        log = self._folder / f".served-{len(self._served)}.log"
        self._served.append(log)
        program = command if command.startswith("curl") else f"exec {command}"
        self._type(f"{{ {program}; }} </dev/null >{log.name} 2>&1 &")
        started = time.monotonic()
        while not log.exists() or not _READY.search(log.read_text(errors="replace")):
            if time.monotonic() - started > _PATIENCE:
                raise CommandFailed(f"{command} does not begin to serve:\n{self.log()}")
            time.sleep(0.05)
        return log.read_text(errors="replace")

    def _type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
