"""Random graphs of google.adk 2: they log what google.adk itself yields, and can be cut anywhere."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from google.adk.apps.app import App
from google.adk.runners import InMemoryRunner
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.journal.events import Event
from perdure.prove.modes import Mode
from perdure.prove.outcome import Outcome
from perdure.prove.proof import ALL_MODES, Prover
from perdure.prove.report import Report
from perdure.prove.scenario import ProofScenario
from tests.adk.support import Script
from tests.prove.random_prover import CONFIG, MOST_TURNS, PROFILE, TIMEOUT, next_turn

if MAJOR < 2:
    pytest.skip("google.adk 1 has no graphs", allow_module_level=True)

from tests.prove.random_graphs import GraphSource, agents_in, build, graphs, scripts

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(TIMEOUT)]


class GraphProver(Prover):
    """Makes up the turns as it goes: answers what waits; then it cuts."""

    async def prove_graph(self, graph: dict[str, Any], mode: Mode) -> Report:
        turns: list[dict[str, Any]] = [{"message": "go"}]
        while len(turns) < MOST_TURNS:
            outcome = await self._once(graph, turns)
            following = next_turn(outcome)
            if following is None:
                if len(turns) == 1:
                    assert as_told(outcome.events) == await by_adk(graph), graph
                break
            turns.append(following)
        return await self.prove(GraphSource(graph), _proof(graph, turns), [mode])

    async def _once(self, graph: dict[str, Any], turns: list[dict[str, Any]]) -> Outcome:
        outcomes: list[Outcome] = []

        def keep(outcome: Outcome) -> list[str]:
            outcomes.append(outcome)
            return list(outcome.problems)

        report = await self.prove(GraphSource(graph), _proof(graph, turns), [], check=keep)
        assert report.verdicts == ()
        assert outcomes[0].problems == [], graph
        return outcomes[0]


def _proof(graph: dict[str, Any], turns: list[dict[str, Any]]) -> ProofScenario:
    at_once = "'fan'" in repr(graph)
    data = {"name": "random", "turns": turns, "compare": "per_author" if at_once else "ordered"}
    return ProofScenario.model_validate(data)


async def by_adk(graph: dict[str, Any]) -> list[str]:
    """Return what google.adk itself logs of a graph in which nothing waits."""
    drawn = deepcopy(graph)
    models = {name: Script(*map(_parts, steps)) for name, steps in scripts(graph).items()}
    for agent in agents_in(drawn):
        agent["models"] = models
    root = build(drawn)
    runner = InMemoryRunner(app=App(name="shop", root_agent=root))
    await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
        pass
    kept = await runner.session_service.get_session(app_name="shop", user_id="u", session_id="s")
    assert kept is not None
    return _told([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in kept.events])


def _parts(step: dict[str, Any]) -> list[types.Part]:
    if "text" in step:
        return [types.Part(text=step["text"])]
    return [types.Part(function_call=types.FunctionCall(**call)) for call in step["calls"]]


def as_told(events: list[Event]) -> list[str]:
    """Return what counts of events, in an order of its own: several nodes may be at work at once."""
    return _told([event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in events])


def _told(events: list[dict[str, Any]]) -> list[str]:
    told: list[str] = []
    for event in events:
        kept = {key: event[key] for key in ("author", "content", "output", "branch", "nodeInfo") if key in event}
        for part in kept.get("content", {}).get("parts", []):
            for name in ("functionCall", "functionResponse"):
                part.get(name, {"id": None}).pop("id", None)
        kept |= {"state": event.get("actions", {}).get("stateDelta"), "route": event.get("actions", {}).get("route")}
        if not event.get("actions", {}).get("endOfAgent") and event["author"] != "user":
            told.append(re.sub(r"@adk-[-0-9a-f]+", "@CALL", json.dumps(kept, sort_keys=True)))
    return sorted(told)


@PROFILE
@given(graph=graphs(), mode=st.sampled_from(ALL_MODES))
async def test_a_random_graph_can_be_cut_anywhere(graph: dict[str, Any], mode: Mode, proof_client: Client) -> None:
    report = await GraphProver(proof_client, CONFIG).prove_graph(graph, mode)
    assert report.ok, f"{graph}\n{report}"
