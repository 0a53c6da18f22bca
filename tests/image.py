"""Builds the image without Docker, step by step in a fresh Debian root, and has its worker and API serve: `make image`.

`docker build` needs an engine. This carries out each step of the Dockerfile (FROM, ARG, ENV, COPY, RUN, USER, WORKDIR)
by `debootstrap` and `chroot`, so it needs root. The base image's Python is a Python 3.13 of this machine, put into the
root with what it links. Then the compose file's commands are started as its user, against a real Temporal server, and
their health checks run until they pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
LIBRARIES = "libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,liblzma5,libreadline8,libexpat1,libuuid1,libncursesw6"
PATIENCE = 120.0
"""Seconds until a service's health check passes: its imports, and a worker's first answer of Temporal."""


_PASSED = ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
"""This machine's way to PyPI: for the build's steps, as `docker build --build-arg` passes it; not in the image."""


@dataclass
class Stage:
    """One stage of the build: its root, and what its steps so far have set."""

    root: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    args: dict[str, str] = field(default_factory=dict[str, str])
    user: str = "0"
    folder: str = "/"
    entry: list[str] = field(default_factory=list[str])

    def command(self, arguments: list[str]) -> list[str]:
        """Return the command line by which `arguments` run in this root, as its user."""
        [(group, home)] = [
            (line.split(":")[3], line.split(":")[5])
            for line in (self.root / "etc/passwd").read_text().splitlines()
            if line.split(":")[2] == self.user
        ]
        variables = {"HOME": home, **self.env, **self.args}
        settings = [f"{name}={value}" for name, value in variables.items()]
        inside = f'cd {shlex.quote(self.folder)} && exec "$@"'
        return [
            *("chroot", f"--userspec={self.user}:{group}", str(self.root), "/usr/bin/env", "-i", *settings),
            *("/bin/sh", "-ec", inside, "sh", *arguments),
        ]

    def step(self, word: str, rest: str, stages: dict[str, Stage]) -> None:
        """Carry out a step that is no FROM; raises CalledProcessError if its command fails."""
        match word:
            case "ARG":
                name, _, value = rest.partition("=")
                self.args[name] = value
            case "ENV":
                self.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "WORKDIR":
                self.folder = rest
                (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = rest
            case "COPY":
                *sources, target = shlex.split(rest)
                from_stage = sources[0].startswith("--from=")
                self._copy(sources, target, stages[sources.pop(0).partition("=")[2]].root if from_stage else ROOT)
            case "RUN":
                subprocess.run(self.command(["/bin/sh", "-ec", rest]), check=True, stdout=subprocess.DEVNULL)
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case "CMD" | "STOPSIGNAL":
                pass
            case _:
                raise SystemExit(f"image: tests/image.py does not know the step {word}: teach it")

    def _copy(self, sources: list[str], target: str, origin: Path) -> None:
        place = self.root / (Path(self.folder) / target).as_posix().lstrip("/")
        into = target.endswith(("/", ".")) or len(sources) > 1
        for source in sources:
            found = origin / source.lstrip("/")
            goal = place / found.name if into and found.is_file() else place
            goal.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, goal, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, goal)


def make_base(folder: Path, python: Path) -> Path:
    """Make what `python:3.13-slim` is, Debian with Python and pip in /usr/local, and copy the way to PyPI."""
    base = folder / "base"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include=ca-certificates,{LIBRARIES}", "bookworm", str(base)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    home = subprocess.check_output([python, "-c", "import sys; print(sys.base_prefix)"], text=True).strip()
    leave = shutil.ignore_patterns("test", "site-packages", "__pycache__")
    shutil.copytree(home, base / "usr/local", symlinks=True, dirs_exist_ok=True, ignore=leave)
    for command in (["ldconfig"], ["/usr/local/bin/python3", "-m", "ensurepip"]):
        subprocess.run(["chroot", str(base), *command], check=True, stdout=subprocess.DEVNULL)
    # A script of its own names the Python that it came with, elsewhere.
    (base / "usr/local/bin/pip").write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    (base / "usr/local/bin/pip").chmod(0o755)
    for file in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(file).exists():
            shutil.copy(file, base / file.lstrip("/"))
    return base


def build(folder: Path, base: Path) -> Stage:
    """Carry out the Dockerfile of the checkout, and return its last stage, which is the image."""
    stages: dict[str, Stage] = {}
    for word, rest in steps((ROOT / "Dockerfile").read_text()):
        print(f"image: {word} {rest}", flush=True)
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "image"
            subprocess.run(["cp", "--archive", str(base), str(folder / name)], check=True)
            stages[name] = Stage(folder / name, args={key: os.environ[key] for key in _PASSED if key in os.environ})
        else:
            list(stages.values())[-1].step(word, rest, stages)
    image = list(stages.values())[-1]
    image.args = {}
    return image


def steps(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Give each step of a Dockerfile: its word, and the rest of its line."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, re.sub(r"\s+", " ", rest).strip()


@contextmanager
def devices(root: Path) -> Generator[None]:
    """Lend a root the host's /dev and /proc."""
    with ExitStack() as stack:
        for name in ("dev", "proc"):
            subprocess.run(["mount", "--bind", f"/{name}", str(root / name)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(root / name)], check=True)
        yield


@contextmanager
def temporal() -> Generator[None]:
    """Serve Temporal on its usual port, with the compose file's namespace."""
    server = subprocess.Popen(
        [Path(sys.executable).parent / "temporal", "server", "start-dev", "--headless", "--namespace", "perdure"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def serve(image: Stage) -> None:
    """Run the compose file's worker and API in the image until both are healthy, and end them by SIGTERM."""
    compose: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    shutil.copytree(ROOT / "examples", image.root / "app/examples")
    with ExitStack() as stack:
        running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("worker", "api"):
            service = compose["services"][name]
            image.env |= {
                key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in service["environment"].items()
            }
            # Both share this host's ports, where each container has its own; Temporal has another name there.
            image.env |= {"TEMPORAL_ADDRESS": "127.0.0.1:7233", "PERDURE_METRICS": f"127.0.0.1:{9090 + len(running)}"}
            running[name] = subprocess.Popen(image.command([*image.entry, *service["command"]]))
            stack.callback(running[name].kill)
        for name, process in running.items():
            probe: list[str] = compose["services"][name]["healthcheck"]["test"][1:]
            wait_for(name, process, image.command(probe))
            print(f"image: {name} is healthy", flush=True)
        for name, process in running.items():
            process.terminate()
            if code := process.wait(60):
                raise SystemExit(f"image: {name} ended with {code} after SIGTERM")


def wait_for(name: str, process: subprocess.Popen[bytes], probe: list[str]) -> None:
    end = time.monotonic() + PATIENCE
    while subprocess.run(probe, stderr=subprocess.DEVNULL).returncode:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"image: {name} is not healthy: its health check never passed")
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path, help="a Python 3.13, whose whole installation is copied")
    python: Path = parser.parse_args().python
    with TemporaryDirectory(prefix="perdure-image-", ignore_cleanup_errors=True) as folder:
        base = make_base(Path(folder), python)
        image = build(Path(folder), base)
        with devices(image.root), temporal():
            subprocess.run(image.command([*image.entry, "--version"]), check=True)
            serve(image)
    print("image: each step of the Dockerfile ran, and its worker and API serve", flush=True)


if __name__ == "__main__":
    main()
