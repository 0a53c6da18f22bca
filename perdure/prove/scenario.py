"""`ProofScenario`: the turns that a user takes with an app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perdure.errors import DefinitionError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class Answer(_Part):
    """The user's response to the N-th call of a tool."""

    call: str
    """The tool's name; a confirmation is a call of `adk_request_confirmation`."""
    occurrence: int = 1
    """Which of the calls in the log, from 1."""
    response: dict[str, Any]


class Resume(_Part):
    """The invocation that a turn resumes."""

    invocation: int
    """Which of the log's invocations, from 1."""


class Turn(_Part):
    """A turn of the user; exactly one of the fields is set."""

    message: str | None = None
    respond: tuple[Answer, ...] | None = None
    resume: Resume | None = None


class ProofScenario(BaseModel):
    """A scenario file of `perdure prove` (docs/prove.md). What must come out is what an uninterrupted run leaves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    """Default: the file's stem."""
    about: str = ""
    """What it shows, for readers."""
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The session's state before the first turn."""
    script: dict[str, list[dict[str, Any]]] = Field(default_factory=dict[str, list[dict[str, Any]]])
    """Answers of scripted models, by agent, in place of the agents' own models: for each model call of a session
    `{"text": …}`, `{"calls": [{"name": …, "args": {…}}]}` or `{"error": …}`."""
    turns: tuple[Turn, ...]
    """What the user does, in order."""
    compare: Literal["ordered", "per_author", "gathered"] = "ordered"
    """`per_author`: events of parallel branches may interleave differently; `gathered`: those of different agents may,
    whatever their branches, since a custom agent gathers them."""

    @model_validator(mode="after")
    def _one_kind(self) -> ProofScenario:
        for number, turn in enumerate(self.turns, start=1):
            if sum(given is not None for given in (turn.message, turn.respond, turn.resume)) != 1 or turn.model_extra:
                raise ValueError(f"turn {number} must have exactly one of message, respond and resume")
        return self


def load_scenario(path: Path) -> ProofScenario:
    """Read a scenario file.

    Raises:
        DefinitionError: There is no such file, or it is no scenario.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DefinitionError(f"cannot read the scenario {str(path)!r}: {error}") from error
    scenario = parse_scenario(data, repr(str(path)))
    return scenario if scenario.name else scenario.model_copy(update={"name": path.stem})


def parse_scenario(data: object, what: str = "this") -> ProofScenario:
    """Return the scenario that JSON describes.

    Args:
        data: The JSON.
        what: How an error names it.

    Raises:
        DefinitionError: It is no scenario.
    """
    try:
        return ProofScenario.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        )
        raise DefinitionError(f"{what} is no scenario of a proof: {problems}; see docs/prove.md") from error
