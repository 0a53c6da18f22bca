"""`docs/errors.md` tells of every error that users may meet, and the command line says where."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from perdure import errors
from perdure.adk import SubAgentFailed
from perdure.api.base.statuses import STATUSES
from perdure.errors import PAGE_OF_ERRORS, PerdureError, SessionNotFound, page_of
from tests.cli.support import Perdure, perdure
from tests.docs.blocks import ROOT

__all__ = ["perdure"]

SECTIONS = {
    heading: text
    for heading, text in re.findall(
        r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / PAGE_OF_ERRORS).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
}
ERRORS = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, Exception) and found.__module__ == errors.__name__
}


def test_each_error_has_its_section_and_each_section_its_error() -> None:
    assert set(SECTIONS) == set(ERRORS)


@pytest.mark.parametrize("name", ERRORS)
def test_a_section_states_the_status_that_the_error_has_over_http(name: str) -> None:
    stated = re.match(r"\nHTTP (\d+)\. ", SECTIONS[name])
    known = STATUSES.get(ERRORS[name])
    assert (int(stated[1]) if stated else None) == known


def test_an_error_of_somebody_elses_class_is_told_of_under_ours() -> None:
    class Lost(SessionNotFound):
        pass

    assert page_of(Lost("gone")) == f"{PAGE_OF_ERRORS}#sessionnotfound"
    assert not issubclass(SubAgentFailed, PerdureError)


async def test_a_command_says_where_its_error_is_told_of(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("app = 1")
    for arguments, code, name in (
        (("pending", "--address", "127.0.0.1:1"), 69, "connectionfailed"),
        (("plan", str(tmp_path / "app.py")), 1, "definitionerror"),
    ):
        done = await perdure(*arguments)
        assert done.code == code
        assert done.err.endswith(f"\n  see docs/errors.md#{name}\n")
