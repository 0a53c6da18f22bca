"""The tree of runs is rebuilt from what an invocation logged: from every prefix of every expected log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from google.genai import types
from pydantic import ValidationError

from perdure.errors import EffectFailed, LogError
from perdure.journal.entries import ActivityKept, EventLogged, Failure, FailureCaught, RunEntry
from perdure.journal.events import Event, EventActions
from perdure.journal.fold import fold_journal
from perdure.journal.run_tree import RunTree, build_runs
from perdure.journal.runs import AgentRun
from perdure.plan.nodes import CustomNode, LlmNode, LoopNode, Node, ParallelNode, Plan, SequentialNode
from perdure.trajectories.run_names import name_runs
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios
from tests.conformance.scenario import Scenario

SCENARIOS = all_scenarios()
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def rebuilt(plan: Plan, agent: str, log: Sequence[RunEntry]) -> AgentRun:
    """Return the tree of a log, whose events may name no run."""
    names = name_runs(plan, agent, log)
    named = [entry.model_copy(update={"run": entry.run or name}) for entry, name in zip(log, names, strict=True)]
    return build_runs(plan, agent, named).root


def walk(run: AgentRun) -> Iterator[AgentRun]:
    yield run
    for child in run.children:
        yield from walk(child)


def invocations(scenario: Scenario) -> Iterator[tuple[Plan, str, list[EventLogged]]]:
    """Yield each invocation's plan, its starting agent and what its agents logged."""
    recorded = record(scenario)
    projection = fold_journal(recorded.entries)
    for invocation in projection.invocations.values():
        entries = [
            entry
            for entry in recorded.entries
            if isinstance(entry, EventLogged) and entry.event.invocation_id == invocation.id
        ]
        assert invocation.agent is not None
        yield recorded.plan, invocation.agent, entries


@every_scenario
def test_every_prefix_gives_a_tree_that_fits_the_plan(scenario: Scenario) -> None:
    for plan, agent, entries in invocations(scenario):
        for length in range(len(entries) + 1):
            root = rebuilt(plan, agent, entries[:length])
            assert (root.agent, root.branch, root.parent) == (agent, None, None)
            for run in walk(root):
                check_children(plan, run)


def check_children(plan: Plan, run: AgentRun) -> None:
    node = plan.nodes[run.agent]
    below = {child.name for child in node.sub_agents}
    for child in run.children:
        assert child.parent is run
        if isinstance(node, ParallelNode):
            prefix = f"{run.branch}." if run.branch else ""
            assert child.branch == f"{prefix}{run.agent}.{child.agent}"
        else:
            assert child.branch == run.branch
        if isinstance(node, LlmNode):
            assert child.agent in {target.name for target in plan.transfer_targets(node)}
        else:
            assert child.agent in below


@every_scenario
def test_every_event_is_found_with_the_run_that_logged_it(scenario: Scenario) -> None:
    for plan, agent, entries in invocations(scenario):
        root = rebuilt(plan, agent, entries)
        assert root.log == [entry.event for entry in entries]
        for run in walk(root):
            below = sum((child.log for child in run.children), list[Event]())
            assert all(event in run.log for event in run.own + below)
            assert all((event.author, event.branch) == (run.agent, run.branch) for event in run.own)


@every_scenario
def test_a_checkpoint_is_that_of_the_last_state_event(scenario: Scenario) -> None:
    for plan, agent, entries in invocations(scenario):
        for length in range(len(entries) + 1):
            for run in walk(rebuilt(plan, agent, entries[:length])):
                states = [
                    event.actions.agent_state
                    for event in run.log
                    if (event.author, event.branch) == (run.agent, run.branch) and event.actions.agent_state is not None
                ]
                assert run.state == (states[-1] if states else None)


@every_scenario
def test_each_end_closes_one_run_and_all_are_closed_when_the_invocation_has_finished(scenario: Scenario) -> None:
    """Ends come from the innermost agent outwards, so a run that has ended has no open run underneath."""
    finished = {
        invocation.id
        for invocation in fold_journal(record(scenario).entries).invocations.values()
        if invocation.status == "finished"
    }
    for plan, agent, entries in invocations(scenario):
        if not plan.resumable:
            continue
        for length in range(1, len(entries) + 1):
            root = rebuilt(plan, agent, entries[:length])
            if entries[length - 1].event.actions.end_of_agent:
                author = entries[length - 1].event.author
                assert any(run.ended and run.agent == author for run in walk(root))
            for run in walk(root):
                assert not run.ended or all(below.ended for below in walk(run))
        if entries and entries[0].event.invocation_id in finished:
            assert rebuilt(plan, agent, entries).ended


# Hand-written logs.


def llm(name: str, *children: Node) -> LlmNode:
    return LlmNode(name=name, model="scripted", sub_agents=children)


def said(agent: str, text: str = "hi", branch: str | None = None, **actions: object) -> EventLogged:
    content = types.Content(role="model", parts=[types.Part(text=text)])
    event = Event(author=agent, branch=branch, content=content, actions=EventActions.model_validate(actions))
    return EventLogged(event=event)


def handed(agent: str, target: str, branch: str | None = None) -> EventLogged:
    return said(agent, "over to you", branch, transfer_to_agent=target)


def state(agent: str, branch: str | None = None, **state: object) -> EventLogged:
    return EventLogged(event=Event(author=agent, branch=branch, actions=EventActions(agent_state=state)))


def end(agent: str, branch: str | None = None) -> EventLogged:
    return EventLogged(event=Event(author=agent, branch=branch, actions=EventActions(end_of_agent=True)))


def shape(run: AgentRun) -> str:
    """Return a tree as text: `*` is an ended run."""
    name = run.agent + ("*" if run.ended else "")
    return f"{name}({', '.join(map(shape, run.children))})" if run.children else name


HELP = Plan(app="shop", resumable=True, root=llm("parent", llm("helper"), llm("other")))


def test_a_parent_that_was_handed_back_to_runs_a_second_time_inside_its_helper() -> None:
    """R10: the parent ends, then the helper, then the parent again."""
    log = [handed("parent", "helper"), handed("helper", "parent"), said("parent")]
    shapes = [shape(rebuilt(HELP, "parent", log[:length])) for length in range(1, 4)]
    assert shapes == ["parent(helper)", "parent(helper(parent))", "parent(helper(parent))"]
    log += [end("parent")]
    assert shape(rebuilt(HELP, "parent", log)) == "parent(helper(parent*))"
    # What has ended is not entered again, so nothing is kept of what is underneath.
    log += [end("helper")]
    assert shape(rebuilt(HELP, "parent", log)) == "parent(helper*)"
    log += [end("parent")]
    assert shape(rebuilt(HELP, "parent", log)) == "parent*"


def test_a_chain_of_transfers_that_comes_back_twice_is_rebuilt_whole() -> None:
    log = [handed("parent", "helper"), handed("helper", "parent"), handed("parent", "other"), handed("other", "parent")]
    root = rebuilt(HELP, "parent", log)
    assert shape(root) == "parent(helper(parent(other(parent))))"
    # Each run has what it logged itself, though three of them are of one agent.
    assert [len(run.own) for run in walk(root)] == [1, 1, 1, 1, 0]


def test_a_peer_is_a_child_of_the_agent_that_handed_over_to_it() -> None:
    log = [handed("parent", "helper"), handed("helper", "other"), said("other")]
    assert shape(rebuilt(HELP, "parent", log)) == "parent(helper(other))"


def test_an_invocation_that_a_sub_agent_started_may_hand_over_to_its_parent() -> None:
    log = [handed("helper", "parent"), handed("parent", "other"), said("other"), end("other"), end("parent")]
    assert shape(rebuilt(HELP, "helper", log[:-1])) == "helper(parent(other*))"
    assert shape(rebuilt(HELP, "helper", log)) == "helper(parent*)"


def test_an_agent_that_logged_nothing_yet_is_known_by_the_transfer_to_it() -> None:
    """A model that fails in its first call has no event, and yet control is with it."""
    root = rebuilt(HELP, "parent", [handed("parent", "helper")])
    assert [(run.agent, run.own) for run in root.children] == [("helper", [])]


def test_a_new_iteration_forgets_what_was_underneath() -> None:
    """R6."""
    plan = Plan(app="shop", resumable=True, root=LoopNode(name="loop", sub_agents=(llm("one"), llm("two"))))
    log = [state("loop", current_sub_agent="one", times_looped=0), said("one"), end("one")]
    assert shape(rebuilt(plan, "loop", log)) == "loop(one*)"
    log += [state("loop", current_sub_agent="two", times_looped=0), said("two"), end("two")]
    assert shape(rebuilt(plan, "loop", log)) == "loop(two*)"
    log += [state("loop", current_sub_agent="one", times_looped=1)]
    root = rebuilt(plan, "loop", log)
    assert shape(root) == "loop"
    assert root.state == {"current_sub_agent": "one", "times_looped": 1}
    log += [said("one", "again")]
    root = rebuilt(plan, "loop", log)
    assert [event.text for event in root.children[0].own] == ["again"]


def test_a_loop_in_a_loop_forgets_the_states_of_the_inner_one() -> None:
    inner = LoopNode(name="inner", sub_agents=(llm("one"),))
    plan = Plan(app="shop", resumable=True, root=LoopNode(name="outer", sub_agents=(inner,)))
    log = [
        state("outer", current_sub_agent="inner", times_looped=0),
        state("inner", current_sub_agent="one", times_looped=0),
        said("one"),
        end("one"),
        state("inner", current_sub_agent="one", times_looped=1),
        said("one"),
        end("one"),
        end("inner"),
        state("outer", current_sub_agent="inner", times_looped=1),
    ]
    assert rebuilt(plan, "outer", log[:-1]).children[0].state == {"current_sub_agent": "one", "times_looped": 1}
    assert rebuilt(plan, "outer", log).children == []


def test_an_escalation_reaches_everything_above_and_nothing_beside() -> None:
    root = SequentialNode(
        name="all", sub_agents=(LoopNode(name="first", sub_agents=(llm("one"),)), LoopNode(name="second"))
    )
    plan = Plan(app="shop", resumable=True, root=root)
    log = [
        state("all", current_sub_agent="first"),
        state("first", current_sub_agent="one", times_looped=0),
        said("one", escalate=True),
    ]
    runs = {run.agent: run.escalated for run in walk(rebuilt(plan, "all", log))}
    assert runs == {"all": True, "first": True, "one": True}
    log += [end("one"), end("first"), state("all", current_sub_agent="second"), state("second")]
    runs = {run.agent: run.escalated for run in walk(rebuilt(plan, "all", log))}
    assert runs == {"all": True, "second": False}


NESTED = Plan(
    app="shop",
    resumable=True,
    root=ParallelNode(
        name="outer",
        sub_agents=(ParallelNode(name="inner", sub_agents=(llm("a", llm("deep")), llm("b"))), llm("c", llm("d"))),
    ),
)


def test_nested_branches_may_interleave_in_any_way() -> None:
    log = [
        state("outer"),
        said("c", branch="outer.c"),
        state("inner", "outer.inner"),
        handed("a", "deep", "outer.inner.inner.a"),
        handed("c", "d", "outer.c"),
        said("b", branch="outer.inner.inner.b"),
        said("deep", branch="outer.inner.inner.a"),
        said("d", branch="outer.c"),
    ]
    root = rebuilt(NESTED, "outer", log)
    assert shape(root) == "outer(c(d), inner(a(deep), b))"
    assert {run.agent: run.branch for run in walk(root)} == {
        "outer": None,
        "inner": "outer.inner",
        "a": "outer.inner.inner.a",
        "deep": "outer.inner.inner.a",
        "b": "outer.inner.inner.b",
        "c": "outer.c",
        "d": "outer.c",
    }
    log += [
        end("b", "outer.inner.inner.b"),
        end("deep", "outer.inner.inner.a"),
        end("d", "outer.c"),
        end("a", "outer.inner.inner.a"),
        end("inner", "outer.inner"),
    ]
    assert shape(rebuilt(NESTED, "outer", log)) == "outer(c(d*), inner*)"


def test_a_parallel_agent_in_a_loop_starts_its_branches_afresh() -> None:
    fan = ParallelNode(name="fan", sub_agents=(llm("left"), llm("right")))
    plan = Plan(app="shop", resumable=True, root=LoopNode(name="loop", sub_agents=(fan,)))
    first = [
        state("loop", current_sub_agent="fan", times_looped=0),
        state("fan"),
        said("left", branch="fan.left"),
        end("left", "fan.left"),
        said("right", branch="fan.right"),
        end("right", "fan.right"),
        end("fan"),
    ]
    second = [
        state("loop", current_sub_agent="fan", times_looped=1),
        state("fan"),
        said("right", "again", branch="fan.right"),
    ]
    root = rebuilt(plan, "loop", first + second)
    assert shape(root) == "loop(fan(right))"
    assert [event.text for event in root.children[0].children[0].own] == ["again"]


STORY = Plan(
    app="shop",
    resumable=True,
    root=CustomNode(name="story", sub_agents=(llm("writer"), llm("critic")), code="m:Story"),
)


def test_a_custom_agent_may_run_one_sub_agent_twice_between_two_checkpoints() -> None:
    log = [state("story", step=0), said("writer", "1"), end("writer"), said("writer", "2")]
    root = rebuilt(STORY, "story", log)
    assert shape(root) == "story(writer*, writer)"
    assert [run.log[0].text for run in root.children] == ["1", "2"]
    assert root.last_child("writer") is root.children[1]
    assert root.last_child("critic") is None
    assert shape(rebuilt(STORY, "story", [*log, state("story", step=1)])) == "story"


def caught(*causes: str, sub_run: str = "") -> FailureCaught:
    failures = tuple(Failure(agent="writer", step="model", cause=cause) for cause in causes)
    told: dict[str, Any] = {"invocation_id": "i1", "agent": "story", "run": "story", "name": "draw"}
    return FailureCaught(failures=failures, sub_run=sub_run, **told)


def named(run: str, entry: EventLogged) -> EventLogged:
    return entry.model_copy(update={"run": run})


def written(text: str, nth: str = "") -> EventLogged:
    return named(f"story/writer@1{nth}", said("writer", text))


def test_a_run_whose_failure_was_dealt_with_is_closed() -> None:
    """A later run of the same agent is another one, whether or not the failed one has logged anything."""
    begun = named("story", state("story", step=0))
    down, ended = caught("down", sub_run="story/writer@1"), named("story/writer@1#2", end("writer"))
    root = rebuilt(STORY, "story", [begun, written("1"), down, written("2", "#2"), ended])
    assert [(run.agent, run.ended, run.failure is not None) for run in root.children] == [
        ("writer", False, True),
        ("writer", True, False),
    ]
    silent = caught("down", sub_run="story/critic@1")
    [run] = rebuilt(STORY, "story", [begun, silent]).children
    assert (run.agent, run.failure) == ("critic", silent)


def test_what_was_caught_is_tried_again_if_the_agent_itself_fails() -> None:
    down = caught("down", sub_run="story/writer@1")
    failed = [named("story", state("story", step=0)), written("1"), down, caught("no quotes")]
    more = [*failed, named("story", said("story", "Oh.")), written("2", "#2")]
    more += [caught("down again", sub_run="story/writer@1#2"), named("story/critic@1", said("critic"))]
    root = rebuilt(STORY, "story", more)
    assert len(root.activities) == 1
    again = [written("3"), named("story/writer@1", end("writer")), written("4", "#2")]
    root = rebuilt(STORY, "story", [*more, caught(), *again])
    assert [(run.agent, [event.text for event in run.log if event.parts], run.ended) for run in root.children] == [
        ("writer", ["1", "3"], True),
        ("critic", ["hi"], False),
        ("writer", ["2", "4"], False),
    ]
    assert (root.activities, [run.failure for run in root.children], root.own) == ([], [None, None, None], [])


WILD = Plan(
    app="shop",
    resumable=True,
    root=CustomNode(
        name="story",
        code="m:Story",
        sub_agents=(
            llm("writer", llm("leaf"), llm("twig")),
            SequentialNode(
                name="line", sub_agents=(llm("first"), CustomNode(name="inner", code="m:I", sub_agents=(llm("low"),)))
            ),
            ParallelNode(
                name="fan", sub_agents=(llm("left"), CustomNode(name="right", code="m:R", sub_agents=(llm("deep"),)))
            ),
        ),
    ),
)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_from_outside_is_refused_or_rebuilt(seed: int) -> None:
    """Names and branches that fit nothing included: in a workflow any other error would fail its task for ever."""
    chosen = random.Random(seed)
    names = [*WILD.nodes, "stranger"]
    branches = [None, None, None, "fan.left", "fan.right", "line.first", "fan.stranger", "", "x", "x.fan.left"]

    def wild() -> EventLogged | ActivityKept | FailureCaught:
        agent, branch = chosen.choice(names), chosen.choice(branches)
        told: dict[str, Any] = {"invocation_id": "i1", "agent": agent, "branch": branch}
        told |= {"name": chosen.choice("fg"), "arguments": chosen.choice(["1", None]), "run": path(agent)}
        match chosen.randrange(8):
            case 0 | 1:
                return named(path(agent), said(agent, branch=branch))
            case 2:
                return named(path(agent), said(agent, branch=branch, end_of_agent=True))
            case 3:
                return named(path(agent), said(agent, branch=branch, agent_state={}))
            case 4:
                return named(path(agent), said(agent, branch=branch, transfer_to_agent=chosen.choice(names)))
            case 5:
                return ActivityKept(result=1, **told)
            case _:
                told |= {"failures": chosen.choice([(), (Failure(agent="a", step="model", cause="down"),)])}
                told |= {"again": chosen.choice([(), (0,), (1, 3)])}
                return FailureCaught(sub_run=chosen.choice(["", path(chosen.choice([*names, "x"]))]), **told)

    def path(agent: str) -> str:
        if chosen.random() < 0.4:
            return ""
        between = chosen.choices(names, k=chosen.randrange(3)) if chosen.random() < 0.3 else WILD.path(agent)[1:-1]
        suffixes = ["", "", "", "@1", "@2", "#2", "@1#2", "#0"]
        return "/".join(["story", *(f"{name}{chosen.choice(suffixes)}" for name in [*between, agent])])

    for _ in range(100):
        log = [wild() for _ in range(chosen.randint(1, 40))]
        take_what_fits(log)
        rebuilt(WILD, "story", [entry.model_copy(update={"run": ""}) for entry in log])


def take_what_fits(log: Sequence[RunEntry]) -> None:
    tree = RunTree(WILD, "story")
    for entry in log:
        with suppress(LogError):
            tree.add(entry)


def test_runs_are_known_by_their_paths() -> None:
    """Whatever else could be read out of the order in which they log."""
    log = [
        named("story", state("story", step=0)),
        named("story/writer@1#2", said("writer", "second")),
        named("story/writer@1", said("writer", "first")),
        named("story/critic@1", said("critic", "beside")),
        named("story/writer@1#2", said("writer", "second again")),
        named("story/writer", said("writer", "begun before the checkpoint")),
    ]
    root = rebuilt(STORY, "story", log)
    assert [(run.path, [event.text for event in run.own]) for run in root.children] == [
        ("story/writer@1", ["first"]),
        ("story/critic@1", ["beside"]),
        ("story/writer@1#2", ["second", "second again"]),
    ]
    assert root.path_of("writer", 3) == "story/writer@1#3"


def test_attempts_that_are_all_tried_again_are_known_by_their_paths() -> None:
    def down(nth: str, cause: str) -> FailureCaught:
        return caught(cause, sub_run=f"story/writer{nth}")

    again = caught().model_copy(update={"again": (1,)})
    log = [named("story/writer", said("writer", "1")), down("", "a"), named("story/writer#2", said("writer", "2"))]
    root = rebuilt(STORY, "story", [*log, down("#2", "b"), again, named("story/writer#2", end("writer"))])
    first, second = root.children
    assert (first.failure and first.failure.failures[0].cause, first.ended) == ("a", False)
    assert (second.failure, second.ended) == (None, True)


@pytest.mark.parametrize("path", ["writer", "other/critic", "critic", "story/stranger", "story/gone/critic"])
def test_a_run_that_the_plan_does_not_have_is_refused(path: str) -> None:
    """The log may be from elsewhere, or of an app whose agents were others."""
    with pytest.raises(LogError, match=r"the run .* is none of (agent|app)"):
        rebuilt(STORY, "story", [named(path, said("critic"))])


def test_a_run_that_no_entry_could_name_is_not_begun() -> None:
    """Control that is handed on to it is logged all the same; the agent fails, and does so again when it is resumed."""
    log = [handed(*("parent", "helper")[:: 1 if number % 2 == 0 else -1]) for number in range(151)]
    [*_, innermost] = walk(rebuilt(HELP, "parent", log[:-1]))
    assert (innermost.agent, innermost.path.count("/"), innermost.own) == ("parent", 150, [])
    names = [*name_runs(HELP, "parent", log[:-1]), innermost.path]
    [*_, innermost] = walk(build_runs(HELP, "parent", list(map(named, names, log))).root)
    assert (innermost.path.count("/"), len(innermost.own)) == (150, 1)
    with pytest.raises(EffectFailed, match="within more than 150 others"):
        innermost.resume("helper", None)


def test_what_names_no_run_is_no_agents() -> None:
    """As what a plugin says."""
    root = build_runs(STORY, "story", [said("model"), caught("down").model_copy(update={"run": ""})]).root
    assert (root.log, root.children) == ([], [])


def test_what_an_agent_begins_behind_its_end_has_a_path_of_its_own() -> None:
    log = [named("story/writer", said("writer")), named("story", end("story"))]
    assert rebuilt(STORY, "story", log).ended
    assert rebuilt(STORY, "story", [caught("down"), log[1], caught()]).ended
    late = named("story/writer", said("writer", "late"))
    assert rebuilt(STORY, "story", [*log, late]).ended
    root = rebuilt(STORY, "story", [*log, named("story/writer@1", said("writer", "anew"))])
    assert (root.ended, [(run.path, run.own[0].text) for run in root.children]) == (False, [("story/writer@1", "anew")])


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", "a@", "a@x", "a#1#2", "/".join("a" * 200), "a" * 10_001])
def test_an_entry_has_a_path_of_runs_or_none(path: str) -> None:
    with pytest.raises(ValidationError):
        EventLogged(event=Event(author="a"), run=path)
    assert EventLogged(event=Event(author="a"), run="größe@12#3/col·lecció").run
    assert EventLogged(event=Event(author="a")).run == ""


def test_two_runs_that_a_custom_agent_gathers_are_told_apart() -> None:
    log = [state("story", step=0), said("writer", "1"), said("critic", "2"), said("writer", "3"), said("critic", "4")]
    root = rebuilt(STORY, "story", log)
    assert [[event.text for event in run.own] for run in root.children] == [["1", "3"], ["2", "4"]]


def test_results_of_activities_count_from_the_last_checkpoint_on() -> None:
    def kept(result: int) -> ActivityKept:
        return ActivityKept(invocation_id="i1", agent="story", name="draw", result=result, run="story")

    root = rebuilt(STORY, "story", [kept(1), state("story", step=0), kept(2), said("writer"), kept(3)])
    assert root.activities == [kept(2), kept(3)]


def test_a_hidden_checkpoint_counts_and_is_in_nobodys_log() -> None:
    hidden = EventLogged(event=Event(author="story", actions=EventActions(agent_state={"step": 1})), hidden=True)
    root = rebuilt(STORY, "story", [hidden])
    assert (root.state, root.log) == ({"step": 1}, [])


def test_an_end_counts_until_its_author_logs_again() -> None:
    root = rebuilt(STORY, "story", [state("story", step=0), end("story"), state("story", step=5)])
    assert (root.state, root.ended) == ({"step": 5}, False)


def test_events_of_agents_that_the_plan_lacks_are_passed_over() -> None:
    log = [said("stranger"), said("x", branch="gone.x"), said("writer")]
    assert shape(rebuilt(STORY, "story", log)) == "story(writer)"
