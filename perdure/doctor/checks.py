"""Checks this machine: versions, extras, credentials. Nothing is connected, and no credential is ever shown."""

from __future__ import annotations

import importlib.util
import platform
import re
import stat
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from perdure.encryption.keys import KeyRing
from perdure.errors import ConnectionFailed, EncryptionError
from perdure.plan.nodes import LlmNode, Plan
from perdure.serving.dev_server import find_temporal

Verdict = Literal["ok", "warning", "failure", "skipped"]

_PACKAGES = ("temporalio", "google-genai", "pydantic")
_EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "api": (("fastapi", "uvicorn"), "`perdure codec` and the HTTP API"),
    "ag-ui": (("ag_ui",), "front ends that speak AG-UI"),
    "a2a": (("a2a",), "agents that speak A2A"),
    "encryption": (("cryptography",), "encrypted histories"),
    "telemetry": (("opentelemetry",), "traces"),
}
"""By extra: the modules that it brings, and what they are for."""
_GEMINI = ("gemini-", "model-optimizer-", "projects/")
"""How the names of models begin that google-genai serves."""
_TRUE = ("true", "1")
_ADC = Path(".config") / "gcloud" / "application_default_credentials.json"


class Check(BaseModel):
    """The result of one check."""

    model_config = ConfigDict(frozen=True)

    name: str
    verdict: Verdict
    """`failure`: agents cannot run like this. `warning`: something will be missing. `skipped`: it could not be seen."""
    words: str
    remedy: str | None = None
    """What to do about it."""


def check_machine(environment: Mapping[str, str], plan: Plan | None) -> Iterator[Check]:
    """Yield the checks that need no server.

    Args:
        environment: This process's environment variables.
        plan: The plan of the app that is to run; its models say which credentials are needed.
    """
    yield _python()
    yield from _packages()
    yield _dev_server()
    for extra, (modules, purpose) in _EXTRAS.items():
        yield _extra(extra, modules, purpose)
    yield check_credentials(environment, plan)


def _python() -> Check:
    return Check(name="python", verdict="ok", words=f"{platform.python_implementation()} {platform.python_version()}")


def _packages() -> Iterator[Check]:
    wanted = {
        match[1]: requirement for requirement in requires("perdure") or [] if (match := _NAMED.match(requirement))
    }
    yield Check(name="perdure", verdict="ok", words=version("perdure"))
    for package in _PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Check(
                name=package, verdict="failure", words="is not installed", remedy=f"pip install '{wanted[package]}'"
            )
            continue
        if fits(found, wanted.get(package, "")):
            yield Check(name=package, verdict="ok", words=found)
        else:
            words = f"{found}; Perdure is made for {wanted[package]}"
            yield Check(name=package, verdict="warning", words=words, remedy=f"pip install '{wanted[package]}'")


_NAMED = re.compile(r"^([\w-]+)")


def fits(found: str, requirement: str) -> bool:
    """Return whether a version is in the range of a requirement such as `temporalio>=1.35,<2`."""
    least, below = re.search(r">=([\d.]+)", requirement), re.search(r"<([\d.]+)", requirement)
    number = _number(found)
    return (least is None or number >= _number(least[1])) and (below is None or number < _number(below[1]))


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dev_server() -> Check:
    try:
        return Check(name="dev-server", verdict="ok", words=f"`perdure dev` would start {find_temporal()}")
    except ConnectionFailed:
        return Check(
            name="dev-server",
            verdict="warning",
            words="the program `temporal` is missing; `perdure dev` needs it where no server runs",
            remedy="pip install 'perdure[dev-server]'",
        )


def _extra(extra: str, modules: tuple[str, ...], purpose: str) -> Check:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return Check(name=extra, verdict="ok", words=f"{' and '.join(modules)}, for {purpose}")
    return Check(
        name=extra,
        verdict="warning",
        words=f"{' and '.join(missing)} missing; needed for {purpose}",
        remedy=f"pip install 'perdure[{extra}]'",
    )


def check_keys(file: Path) -> Check:
    """Return whether a file holds encryption keys that only its owner can read."""
    name = "encryption keys"
    try:
        ring = KeyRing.from_file(file)
        mode = file.stat().st_mode
    except (EncryptionError, OSError) as error:
        return Check(name=name, verdict="failure", words=str(error), remedy="perdure keys new --file FILE makes one")
    words = f"{len(ring.keys)} in {str(file)!r}; key {ring.newest.id!r} encrypts"
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Check(
            name=name,
            verdict="warning",
            words=f"{words}; others than its owner may read it",
            remedy=f"chmod 600 {file}",
        )
    return Check(name=name, verdict="ok", words=words)


def check_credentials(environment: Mapping[str, str], plan: Plan | None) -> Check:
    """Return whether google-genai would find credentials in an environment, by the rules of its own client.

    Args:
        environment: Environment variables; only their names are ever told.
        plan: The plan of the app that is to run. Default: any, which may not need them.
    """
    models = {node.model for node in plan.every_node if isinstance(node, LlmNode)} if plan is not None else None
    if models is not None and not any(name.startswith(_GEMINI) for name in models):
        return Check(name="model credentials", verdict="ok", words="no model of this app is Google's")
    if _on_vertex(environment) or (models is not None and any(name.startswith("projects/") for name in models)):
        return _vertex(environment)
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        key = environment.get(name)
        if key and key != key.strip():
            return Check(
                name="model credentials",
                verdict="failure",
                words=f"{name} has white space around it",
                remedy="set it again without",
            )
        if key:
            return Check(name="model credentials", verdict="ok", words=f"{name} is set here; a worker needs it, too")
    return Check(
        name="model credentials",
        verdict="warning" if models is None else "failure",
        words="neither GOOGLE_API_KEY nor GEMINI_API_KEY is set here, nor GOOGLE_GENAI_USE_VERTEXAI",
        remedy="set one of them where the workers run, if agents use Gemini",
    )


def _on_vertex(environment: Mapping[str, str]) -> bool:
    for name in ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI"):
        if name in environment:
            return environment[name].lower() in _TRUE
    return False


def _vertex(environment: Mapping[str, str]) -> Check:
    name = "model credentials"
    project, location = environment.get("GOOGLE_CLOUD_PROJECT"), environment.get("GOOGLE_CLOUD_LOCATION")
    if not project and not location and (environment.get("GOOGLE_API_KEY") or environment.get("GEMINI_API_KEY")):
        return Check(name=name, verdict="ok", words="Vertex AI with an API key")
    file = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if file and not Path(file).is_file():
        return Check(
            name=name,
            verdict="failure",
            words="GOOGLE_APPLICATION_CREDENTIALS names a file that is not there",
            remedy="name the service account's JSON file",
        )
    if not file and not (Path(environment.get("HOME", "~")).expanduser() / _ADC).is_file():
        return Check(
            name=name,
            verdict="warning",
            words="Vertex AI, but no application default credentials are here; only Google's machines have others",
            remedy="gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
        )
    if not project:
        return Check(
            name=name,
            verdict="warning",
            words="Vertex AI, but GOOGLE_CLOUD_PROJECT is not set; it is taken from the credentials, if these name one",
            remedy="set GOOGLE_CLOUD_PROJECT",
        )
    return Check(name=name, verdict="ok", words=f"Vertex AI, project {project}, location {location or 'global'}")
