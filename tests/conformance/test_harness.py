"""The harness finds what differs, and says so."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from perdure.agents.tools import FunctionTool
from perdure.compiler.compile import compile_app
from perdure.errors import DefinitionWarning, ModelError
from perdure.models.base import LlmRequest
from perdure.plan.nodes import ToolPlan
from tests.conformance import scenario
from tests.conformance.build import RecordingModel, ScenarioApp, ScenarioError
from tests.conformance.logs import FOLDER, all_scenarios, expected_turns, plan_of
from tests.conformance.runner import Outcome, compare
from tests.conformance.scenario import Scenario

SCENARIOS = {spec.name: spec for spec in all_scenarios()}
every_scenario = pytest.mark.parametrize("spec", SCENARIOS.values(), ids=list(SCENARIOS))


def as_expected(spec: Scenario) -> Outcome:
    """Return the outcome in which everything went as a scenario expects."""
    return Outcome(
        turns=list(expected_turns(spec)),
        failed=[{"failed": True} in turn for turn in spec.expect.turns],
        state={**spec.expect.final_state, "temp:gone": 1},
        requests=dict(spec.expect.requests),
        tool_runs=Counter(
            {tool: runs if isinstance(runs, int) else runs[0] for tool, runs in spec.expect.tool_runs.items()}
        ),
    )


@every_scenario
def test_the_expected_outcome_passes(spec: Scenario) -> None:
    assert compare(spec, as_expected(spec)) == []


def _drop_event(outcome: Outcome) -> None:
    outcome.turns[0].pop()


def _fail_turn(outcome: Outcome) -> None:
    outcome.failed[0] = not outcome.failed[0]


def _lose_turn(outcome: Outcome) -> None:
    outcome.turns.pop()
    outcome.failed.pop()


def _change_state(outcome: Outcome) -> None:
    outcome.state["other"] = 1


def _run_tool(outcome: Outcome) -> None:
    outcome.tool_runs["other"] += 1


def _leave_step(outcome: Outcome) -> None:
    outcome.problems.append("clerk made 1 model calls, but its script has 2 steps")


@pytest.mark.parametrize("change", [_drop_event, _fail_turn, _lose_turn, _change_state, _run_tool, _leave_step])
def test_a_changed_outcome_fails(change: Callable[[Outcome], None]) -> None:
    for name, spec in SCENARIOS.items():
        outcome = as_expected(spec)
        change(outcome)
        assert compare(spec, outcome) != [], name


def test_a_model_that_saw_something_else_fails() -> None:
    spec = SCENARIOS["llm_one_tool"]
    outcome = as_expected(spec)
    (agent, calls) = next(iter(outcome.requests.items()))
    outcome.requests[agent] = calls[:-1]
    lines = compare(spec, outcome)
    assert lines[0] == f"model call {len(calls)} of {agent} (- expected, + actual):"
    assert all(line.startswith("  -") for line in lines[1:])


@every_scenario
def test_an_app_is_built_as_the_scenario_says(spec: Scenario) -> None:
    built = ScenarioApp(spec, spec.app.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        compiled = compile_app(built.app)
    expected = plan_of(spec)
    assert list(compiled.nodes) == list(expected.nodes)
    assert compiled.resumable == expected.resumable
    for name, node in compiled.nodes.items():
        own: dict[str, Any] = {"sub_agents": (), "tools": ()}
        assert node.model_copy(update=own) == expected.nodes[name].model_copy(update=own)
        assert [_kind(tool) for tool in getattr(node, "tools", ())] == [
            _kind(tool) for tool in getattr(expected.nodes[name], "tools", ())
        ]


def _kind(tool: ToolPlan) -> tuple[str, str, str]:
    return tool.name, tool.kind, tool.confirmation


def _app(tools: dict[str, Any], names: list[str] | None = None) -> ScenarioApp:
    root = {"kind": "llm", "name": "clerk", "tools": names or list(tools)}
    data: dict[str, Any] = {
        "name": "x",
        "app": {"name": "shop", "root": root},
        "tools": tools,
        "turns": [],
        "expect": {"turns": []},
    }
    return ScenarioApp(Scenario.model_validate(data), "shop")


def test_a_tool_has_the_declared_parameters_and_no_retry() -> None:
    kinds = {"city": "string", "days": "integer", "far": "number", "now": "boolean", "more": "object"}
    built = _app({"forecast": {"parameters": kinds, "escalate": True}})
    (tool,) = compile_app(built.app).nodes["clerk"].model_dump()["tools"]
    properties = tool["declaration"]["parameters_json_schema"]["properties"]
    assert {name: value["type"] for name, value in properties.items()} == kinds
    assert tool["needs_context"] is True
    assert tool["options"]["max_attempts"] == 1


def test_a_tool_fails_first_and_counts_its_runs() -> None:
    built = _app({"look": {"fail_first": 1, "returns": {"a": []}}})
    agent = built.app.root_agent
    tool: FunctionTool = getattr(agent, "tools")[0]  # noqa: B009 -- typed as any agent
    with pytest.raises(RuntimeError, match="run 1 of look"):
        tool.fn()
    first = tool.fn()
    first["a"].append(1)
    assert tool.fn() == {"a": []}
    assert built.tool_runs == {"look": 3}


def test_a_tool_that_is_not_described_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="'look'"):
        _app({}, ["look"])


async def test_a_model_keeps_what_it_was_asked_and_complains_about_its_script() -> None:
    model = RecordingModel("clerk", [{"error": "overloaded"}])
    assert model.leftover() == ["clerk made 0 model calls, but its script has 1 steps"]
    for index in range(2):
        content = types.Content(role="user", parts=[types.Part(text=f"call {index}")])
        request = LlmRequest(
            model="scripted",
            contents=[content],
            config=types.GenerateContentConfig(),
            agent="clerk",
            call_index=index,
        )
        with pytest.raises(ModelError):
            await anext(model.generate_content_async(request))
    assert [request[0]["parts"] for request in model.requests] == [[{"text": "call 0"}], [{"text": "call 1"}]]
    assert model.problems == ["clerk made model call 2, but its script has 1 steps"]


def test_folders_and_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.json", "b/a.json", "b/notes.md"):
        (tmp_path / name).touch()
    assert scenario.find([tmp_path]) == [tmp_path / "b" / "a.json", tmp_path / "c.json"]
    assert scenario.find([tmp_path / "c.json"]) == [tmp_path / "c.json"]
    for missing in (tmp_path / "none.json", tmp_path / "none"):
        with pytest.raises(FileNotFoundError):
            scenario.find([missing])


@pytest.mark.server
def test_the_command_tells_what_passed_and_what_failed(tmp_path: Path) -> None:
    """As the issue has it: a line for each scenario, a summary, and exit code 1 if any failed."""
    data = json.loads((FOLDER / "llm_text.json").read_text())
    data["name"] = "other_text"
    data["mood"] = "good"
    data["expect"]["turns"][0][1]["parts"] = [{"text": "not this"}]
    (tmp_path / "b_other.json").write_text(json.dumps(data))
    (tmp_path / "c_broken.json").write_text("{")
    (tmp_path / "a_good.json").write_text((FOLDER / "llm_text.json").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--mode", "re-enter", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["ok llm_text", "note other_text: unknown field mood", "FAIL other_text"]
    assert any(line.lstrip().startswith("-") and "not this" in line for line in lines)
    assert "FAIL c_broken" in lines
    assert lines[-1] == "1 passed, 2 failed"
    assert done.returncode == 1
