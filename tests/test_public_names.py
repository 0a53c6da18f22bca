"""`import perdure` is cheap, and gives every public name when it is asked for."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import perdure
import perdure.agents
from perdure import errors


def test_every_public_name_is_there() -> None:
    assert [name for name in perdure.__all__ if not hasattr(perdure, name)] == []
    assert set(perdure.__all__) <= set(dir(perdure))
    assert perdure.Agent is perdure.agents.LlmAgent


def test_the_package_offers_what_its_agents_offer() -> None:
    assert set(perdure.agents.__all__) <= set(perdure.__all__)


def test_every_error_that_users_may_catch_is_a_public_name() -> None:
    classes = [
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, Warning | Exception)
    ]
    assert set(classes) <= set(perdure.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Agentt'"):
        perdure.Agentt  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # the point


def test_importing_the_package_loads_nothing_heavy() -> None:
    """google-genai alone takes two seconds; `perdure --help` must not wait for it."""
    code = "import perdure, sys; print([m for m in ('google.genai', 'temporalio', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
