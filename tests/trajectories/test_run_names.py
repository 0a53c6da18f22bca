"""An imported invocation's runs are named once, as it is pinned to a plan; names that do not fit that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from google.genai import types

from perdure.errors import InvalidTrajectory, LogError
from perdure.journal.entries import (
    Entry,
    EventLogged,
    InvocationPinned,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    PlanLoaded,
    SessionCreated,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.projection import Projection
from perdure.journal.run_tree import build_runs
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Node, Plan, SequentialNode
from perdure.trajectories.bare_log import read_log
from perdure.trajectories.given_logs import read_given
from perdure.trajectories.run_names import with_runs
from tests.exports import by_hand
from tests.trajectories.test_export_import import export

_numbers = count(1)


def llm(name: str, *children: Node, **fields: Any) -> LlmNode:
    return LlmNode(name=name, model="scripted", sub_agents=children, **fields)


def said(author: str, text: str = "hi", **fields: Any) -> Event:
    content = types.Content(role="model", parts=[types.Part(text=text)])
    told = {"id": f"e{next(_numbers)}", "author": author, "invocation_id": "i1", "timestamp": 1.0, "content": content}
    return Event.model_validate(told | fields)


def state(author: str, **state: Any) -> Event:
    return said(author, content=None, actions=EventActions(agent_state=state))


def message() -> Event:
    return Event(id="m", author=USER, invocation_id="i1", timestamp=1.0, content=user_content("hi"))


def logged(*events: tuple[str, Event]) -> list[Entry]:
    """Return a journal, with the names of its runs."""
    started = InvocationStarted(invocation_id="i1", agent="root", plan="", timestamp=1.0)
    begun = [SessionCreated(), MessageAccepted(event=message().model_copy(update={"timestamp": 0.0})), started]
    return [*begun, *(EventLogged(event=event, run=run) for run, event in events)]


def pinned(log: Sequence[Entry], plan: Plan, agent: str = "root") -> tuple[InvocationPinned, Projection]:
    """Return how the invocation of an imported log is pinned, and the session then."""
    session = fold_journal((*log, LogImported(), PlanLoaded(plan=plan)))
    entry = with_runs(InvocationPinned(invocation_id="i1", agent=agent, plan=plan.digest), session, plan)
    apply_entry(session, entry)
    return entry, session


def bare(*events: Event) -> tuple[Entry, ...]:
    """Return the journal of a log that breaks off behind a call."""
    call = types.Part(function_call=types.FunctionCall(id="c1", name="ask", args={}))
    events = (*events[:-1], events[-1].model_copy(update={"content": types.Content(role="model", parts=[call])}))
    return read_log([message(), *events], fresh=lambda: f"x{next(_numbers)}").entries


LOOP = Plan(app="shop", resumable=True, root=LoopNode(name="root", sub_agents=(llm("one"), llm("two"))))


def test_a_bare_log_gets_the_names_that_its_agents_would_have_given() -> None:
    log = bare(
        state("root", current_sub_agent="one", times_looped=0),
        said("one"),
        said("one"),
        said("model"),
        state("root", current_sub_agent="two", times_looped=0),
        said("two"),
    )
    entry, session = pinned(log, LOOP)
    assert entry.runs == (("root", 1), ("root/one@1", 2), ("", 1), ("root", 1), ("root/two@2", 1))
    invocation = session.invocations["i1"]
    assert [one.run for one in invocation.entries] == [name for name, times in entry.runs for _ in range(times)]
    root = build_runs(LOOP, "root", invocation.entries).root
    assert [(run.path, len(run.own)) for run in root.children] == [("root/two@2", 1)]


def test_a_log_that_names_its_runs_keeps_the_names() -> None:
    """Two runs of one agent at once have the same author, so nothing else would tell them apart."""
    story = Plan(app="shop", resumable=True, root=CustomNode(name="root", sub_agents=(llm("one"),), code="m:Story"))
    log = logged(("root/one", said("one", "1")), ("root/one#2", said("one", "2")), ("root/one", said("one", "3")))
    assert read_given(export(log, journal=True)).entries == tuple(log)
    entry, session = pinned(log, story)
    assert entry.runs == ()
    root = build_runs(story, "root", session.invocations["i1"].entries).root
    assert [[event.text for event in run.own] for run in root.children] == [["1", "3"], ["2"]]


OTHER_PLANS = {
    "its agents are gone": Plan(app="shop", resumable=True, root=llm("root")),
    "they stand elsewhere": Plan(
        app="shop", resumable=True, root=SequentialNode(name="root", sub_agents=(llm("two", llm("one")),))
    ),
}


@pytest.mark.parametrize("plan", OTHER_PLANS.values(), ids=OTHER_PLANS)
def test_names_that_do_not_fit_the_plan_are_refused(plan: Plan) -> None:
    log = logged(("root", state("root", current_sub_agent="one")), ("root/one@1", said("one")))
    with pytest.raises(LogError, match=r"has other agents: the run 'root/one@1' is none of app 'shop'.*--damaged"):
        pinned(log, plan)
    entry, _ = pinned(bare(*(one.event for one in log if isinstance(one, EventLogged))), plan)
    assert entry.runs


def test_names_of_another_agents_invocation_are_refused() -> None:
    with pytest.raises(LogError, match="the run 'one' is none of agent 'root', which began"):
        pinned(logged(("one", said("one"))), LOOP)


def test_too_many_runs_within_each_other_are_refused() -> None:
    plan = Plan(app="shop", resumable=True, root=llm("root", llm("one")))

    def handed() -> Iterator[Event]:
        for number in range(200):
            author, target = ("root", "one") if number % 2 == 0 else ("one", "root")
            yield said(author, actions=EventActions(transfer_to_agent=target))

    events = list(handed())
    pinned(bare(*events[:150]), plan)
    with pytest.raises(LogError, match="runs within more than 150 others"):
        pinned(bare(*events), plan)


def test_more_runs_than_an_entry_holds_are_refused() -> None:
    fan = Plan(app="shop", resumable=True, root=CustomNode(name="root", sub_agents=(llm("o" * 9_000),), code="m:S"))
    events = (state(author, n=1) for _ in range(250) for author in ("o" * 9_000, "root"))
    with pytest.raises(LogError, match="more agent runs than one entry"):
        pinned(bare(*events), fan)


@pytest.mark.parametrize(
    "runs", [(), (("root", 2),), (("root", 10**12),), (("root", 1), ("root", 0), ("root", -1))], ids=repr
)
def test_an_import_that_names_more_or_fewer_runs_than_it_has_is_refused(runs: tuple[tuple[str, int], ...]) -> None:
    log = [*logged(("", said("root"))), InvocationPinned(invocation_id="i1", agent="root", plan="", runs=runs)]
    lines = [*by_hand(export(log[:-1], journal=True)), f'{{"perdure":{{"entry":{log[-1].model_dump_json()}}}}}']
    if not runs:
        assert read_given(lines).entries == tuple(log)
        return
    with pytest.raises(InvalidTrajectory, match="the entry 'pinned' does not fit those before it"):
        read_given(lines)


@pytest.mark.parametrize("run", ['"a//b"', '"a#x"', "7", "null"])
def test_a_line_that_names_no_run_is_refused(run: str) -> None:
    lines = by_hand(export(logged(("root", said("root"))), journal=True))
    named = '{"perdure":{"run":"root"}}'
    assert named in lines
    with pytest.raises(InvalidTrajectory, match=r"line \d+ names no agent run"):
        read_given([line.replace(named, f'{{"perdure":{{"run":{run}}}}}') for line in lines])
