"""Dockerfile, compose file and Kubernetes example, as far as no engine is needed: form, and that what they name exists.

`make image` carries out the Dockerfile and starts what the compose file starts.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from perdure.cli.main import main
from perdure.compiler.loading import load_app

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("build")}
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def parsed(arguments: list[str]) -> tuple[click.Command, dict[str, Any]]:
    """Return the command that a command line of `perdure` names, and its parameters; it fails as the command would."""
    command: click.Command = main
    context = click.Context(main, info_name="perdure")
    left = list(arguments)
    while isinstance(command, click.Group):
        name = left.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r}"
        command = found
    return command, command.make_context(command.name, left, parent=context).params


def instructions(word: str) -> list[str]:
    return [line.partition(" ")[2].strip() for line in DOCKERFILE if line.startswith(f"{word} ")]


def test_compose_takes_the_file() -> None:
    # As https://github.com/compose-spec/compose-go/blob/main/schema/compose-spec.json has it (Apache-2.0).
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate({**COMPOSE, "services": {"worker": {"replica": 2}}}, schema)


def test_worker_and_api_come_from_the_image() -> None:
    assert {name: service["command"][0] for name, service in OURS.items()} == {"worker": "worker", "api": "api"}
    assert {service["build"] for service in OURS.values()} == {"."}
    assert instructions("ENTRYPOINT") == ['["perdure"]']


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_services_command_is_one_of_perdures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = OURS[name]
    for key, value in service["environment"].items():
        monkeypatch.setenv(key, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
    command, params = parsed(service["command"])
    assert command.name == name
    [target] = params["targets"]
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    assert f"/app/{target}".startswith(tuple(mounted))
    assert load_app(str(ROOT / target)).name == Path(target).name
    assert (params["otel"], params["metrics"]) == (False, "0.0.0.0:9090")
    if name == "worker":
        assert seconds(service["stop_grace_period"]) > params["grace"] + 10
    else:
        assert seconds(service["stop_grace_period"]) > params["drain"] + 10


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration[:-1])


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_health_check_asks_what_the_service_serves(name: str) -> None:
    service = OURS[name]
    _, params = parsed(service["command"])
    probe = service["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "python", "-c"]
    compile(probe[3], "healthcheck", "exec")
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)'", probe[3])
    assert found is not None
    port = params["health"][1] if name == "worker" else params["port"]
    assert (int(found[1]), found[2]) == (port, "/readyz")
    if name == "api":
        published = [entry.split(":") for entry in service["ports"]]
        assert [(where, int(inside)) for where, _, inside in published] == [("127.0.0.1", port)]


def test_paths_and_services_that_are_named_exist() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    variables = set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    assert variables == set(re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def test_every_image_is_one_of_a_named_version() -> None:
    for name, service in SERVICES.items():
        assert name in OURS or re.fullmatch(r"[\w/-]+:\d[\w.]*", service["image"])
    for line in instructions("FROM"):
        assert re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", line)


def test_what_the_image_is_built_from_is_there_and_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    for line in instructions("COPY"):
        *sources, _ = shlex.split(line)
        for source in sources:
            if source.startswith("--from="):
                break
            assert (ROOT / source.rstrip("/")).exists()
            assert any(fnmatch(source, rule) for rule in allowed), f"{source} does not reach the build"


def test_a_wheel_can_be_built_of_what_is_copied(tmp_path: Path) -> None:
    for line in instructions("COPY"):
        *sources, _ = shlex.split(line)
        for source in sources if not sources[0].startswith("--from=") else ():
            found = ROOT / source
            if found.is_dir():
                shutil.copytree(found, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").glob("perdure-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("perdure/")}
    assert {"perdure/telemetry/tracing.py", "perdure/py.typed"} <= inside


def test_the_image_installs_the_versions_of_the_lock_file(tmp_path: Path) -> None:
    [command] = [line for line in instructions("RUN") if line.startswith("sed")]
    done = subprocess.run(
        ["bash", "-c", command.rpartition(">")[0]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    pinned = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    assert len(lines) == len(pinned)
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.+!]+( ; .+)?", line), line
    assert "temporalio" in {line.partition("==")[0] for line in lines}


def test_the_image_has_a_python_that_the_tests_run_on() -> None:
    [python] = {image.partition(" ")[0] for image in instructions("FROM") if image.startswith("python:")}
    [(major, minor)] = re.findall(r"^python:(\d+)\.(\d+)-slim$", python)
    makefile = (ROOT / "Makefile").read_text()
    assert f"\ntest-{major}{minor}:" in makefile
    assert f"sys.version_info[:2] != ({major}, {minor})" in makefile
    assert f"make test-{major}{minor}" in (ROOT / ".ci" / "run").read_text()


def test_the_image_runs_as_nobody_in_particular() -> None:
    assert instructions("USER") == ["10001"]
    [extras] = [
        value.split(",") for name, _, value in (arg.partition("=") for arg in instructions("ARG")) if name == "EXTRAS"
    ]
    assert set(extras) <= {"adk", "api", "encryption", "telemetry", "dev-server"}
    for service in OURS.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service


def test_the_dynamic_configuration_has_the_servers_form() -> None:
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROOT / "deploy" / "temporal.yaml").read_text())
    assert {key: [set(value) for value in values] for key, values in found.items()} == {
        "history.transferProcessorMaxPollRPS": [{"value"}],
        "system.enableActivityEagerExecution": [{"value"}],
    }
    [mount] = [volume for volume in SERVICES["temporal"]["volumes"] if "deploy/temporal.yaml" in volume]
    assert mount.split(":")[1] == SERVICES["temporal"]["environment"]["DYNAMIC_CONFIG_FILE_PATH"]
