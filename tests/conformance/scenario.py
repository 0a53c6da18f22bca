"""The scenario format (FORMAT.md) as pydantic models. Fields that it does not know are kept and reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.prove.scenario import Turn


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class _Agent(_Part):
    name: str
    description: str = ""
    sub_agents: tuple[AgentSpec, ...] = ()


class LlmSpec(_Agent):
    """An LLM agent with a scripted model."""

    kind: Literal["llm"]
    instruction: str = ""
    tools: tuple[str, ...] = ()
    output_key: str | None = None
    include_contents: Literal["default", "none"] = "default"
    disallow_transfer_to_parent: bool = False
    disallow_transfer_to_peers: bool = False
    script: tuple[dict[str, Any], ...] = ()
    """STEPs, one for each model call of this agent."""


class SequentialSpec(_Agent):
    """A sequential agent."""

    kind: Literal["sequential"]


class LoopSpec(_Agent):
    """A loop agent."""

    kind: Literal["loop"]
    max_iterations: int | None = None


class ParallelSpec(_Agent):
    """A parallel agent."""

    kind: Literal["parallel"]


class CustomSpec(_Agent):
    """The harness's custom agent, which runs its steps in order."""

    kind: Literal["custom"]
    steps: tuple[str, ...]


class ProgramSpec(_Agent):
    """A custom agent with a program (`tests.prove.program_agent`): not of the format, for random trees."""

    kind: Literal["program"]
    program: tuple[dict[str, Any], ...]


AgentSpec = Annotated[
    LlmSpec | SequentialSpec | LoopSpec | ParallelSpec | CustomSpec | ProgramSpec, Field(discriminator="kind")
]


class AppSpec(_Part):
    """The application."""

    name: str
    resumable: bool = False
    root: AgentSpec


class ToolSpec(_Part):
    """What a tool does."""

    parameters: dict[str, Literal["string", "integer", "number", "boolean", "object"]] = Field(
        default_factory=dict[str, Literal["string", "integer", "number", "boolean", "object"]]
    )
    long_running: bool = False
    returns: Any = None
    fail_first: int = 0
    state_delta: dict[str, Any] = Field(default_factory=dict[str, Any])
    escalate: bool = False
    skip_summarization: bool = False
    transfer_to_agent: str | None = None
    confirm: bool = False


class Expect(_Part):
    """What must come out."""

    turns: list[list[dict[str, Any]]]
    requests: dict[str, list[list[dict[str, Any]]]] = Field(default_factory=dict[str, list[list[dict[str, Any]]]])
    final_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    tool_runs: dict[str, int | tuple[int, int]] = Field(default_factory=dict[str, int | tuple[int, int]])


class Scenario(_Part):
    """One scenario file."""

    name: str
    about: str = ""
    source: str = ""
    app: AppSpec
    state: dict[str, Any] = Field(default_factory=dict[str, Any])
    tools: dict[str, ToolSpec] = Field(default_factory=dict[str, ToolSpec])
    turns: tuple[Turn, ...]
    compare: Literal["ordered", "per_author", "gathered"] = "ordered"
    expect: Expect

    @property
    def agents(self) -> list[AgentSpec]:
        """The agents of the tree, depth-first, parents before children."""
        return list(_walk(self.app.root))

    @property
    def authors(self) -> list[str]:
        """Who may write events, in the order that `per_author` goes by."""
        return ["user", *(agent.name for agent in self.agents)]


def _walk(agent: AgentSpec) -> Iterator[AgentSpec]:
    yield agent
    for child in agent.sub_agents:
        yield from _walk(child)


def unknown_fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields that the format does not know."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}".lstrip(".") for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - a parsed JSON value
            yield from unknown_fields(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType] - a parsed JSON value
            yield from unknown_fields(item, f"{path}.{key}")


def load(path: Path) -> Scenario:
    """Read a scenario file.

    Raises:
        pydantic.ValidationError: The file is no scenario.
    """
    return Scenario.model_validate_json(path.read_bytes())


def find(paths: list[Path]) -> list[Path]:
    """Return the scenario files among and underneath paths, each folder's in order of name.

    Raises:
        FileNotFoundError: A path does not exist, or a folder holds no scenario.
    """
    found: list[Path] = []
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files or not path.exists():
            raise FileNotFoundError(f"{path}: no such file, or a folder without scenarios (*.json)")
        found.extend(files)
    return found


for _cls in (LlmSpec, SequentialSpec, LoopSpec, ParallelSpec, CustomSpec, AppSpec, Scenario):
    _cls.model_rebuild()
