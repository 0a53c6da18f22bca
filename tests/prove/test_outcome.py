"""What a proof compares, and what it lets pass: no server needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from google.genai import types

from perdure.errors import DefinitionError
from perdure.journal.entries import EventLogged, ModelCalled, TempStateSet
from perdure.journal.events import Event, EventActions
from perdure.prove.ledger import Ledger, Step
from perdure.prove.modes import Cut
from perdure.prove.outcome import Order, Outcome, differences, normalized, places, repeats
from perdure.prove.report import Report, Verdict
from perdure.prove.scenario import load_scenario, parse_scenario
from perdure.prove.target import target_of, unscripted, use_script
from perdure.sessions.lifecycle import whole_steps
from tests.prove import shop


def called(call_id: str, name: str = "pay", invocation: str = "e-1") -> Event:
    call = types.FunctionCall(id=call_id, name=name, args={})
    content = types.Content(role="model", parts=[types.Part(function_call=call)])
    return Event(id=f"m-{call_id}", author="clerk", invocation_id=invocation, content=content)


def responded(call_id: str, name: str = "pay", invocation: str = "e-1") -> Event:
    response = types.FunctionResponse(id=call_id, name=name, response={"ok": True})
    content = types.Content(role="user", parts=[types.Part(function_response=response)])
    return Event(id=f"r-{call_id}", author="clerk", invocation_id=invocation, content=content)


def tool(number: int, key: str, *, activity: str = "run/1", attempt: int = 1, process: int = 1, **more: object) -> Step:
    values: dict[str, object] = {"ended": True, **more}
    step = Step(
        number=number,
        kind="tool",
        name="pay",
        workflow="w",
        activity=activity,
        attempt=attempt,
        process=process,
        key=key,
    )
    for name, value in values.items():
        setattr(step, name, value)
    return step


def outcome(call_id: str = "a", invocation: str = "e-1") -> Outcome:
    events = [called(call_id, invocation=invocation), responded(call_id, invocation=invocation)]
    return Outcome(turns=[events], state={"n": 1, "temp:x": 1}, steps=[tool(1, f"{invocation}/{call_id}")])


def test_runs_that_differ_by_their_ids_are_equal() -> None:
    assert differences(outcome(), outcome("other", "e-9"), None) == []


def test_each_difference_is_told() -> None:
    missing = outcome("b", "e-2")
    missing.turns[0].pop()
    assert any(line.lstrip().startswith("-") for line in differences(outcome(), missing, None))
    changed = outcome("b", "e-2")
    changed.state["n"] = 2
    assert differences(outcome(), changed, None)[0].startswith("final state")
    twice = outcome("b", "e-2")
    twice.steps.append(tool(2, "e-2/b", activity="run/7"))
    assert differences(outcome(), twice, None) == ["tool pay (i1/c1) ran 2 times, expected 1"]
    hung = outcome("b", "e-2")
    hung.problems.append("turn 1 was not over")
    assert differences(outcome(), hung, None) == ["turn 1 was not over"]


def test_what_a_prefix_tells_of_must_not_run_again() -> None:
    done = Counter({("tool pay", "e-1/a"): 1})
    assert differences(outcome(), outcome(), None, done) == ["tool pay (i1/c1) ran 1 times, expected 0"]


def test_a_second_run_is_right_only_after_a_kill_or_a_failure() -> None:
    """As the issue has it: only where the kill fell between the tool's start and its completion."""
    first = tool(1, "k", ended=False)
    again, wrong = repeats([first, tool(2, "k", attempt=2, process=2)], killed=True)
    assert [(item.tool, item.key, item.times) for item in again] == [("pay", "k", 1)]
    assert wrong == []
    assert repeats([tool(1, "k", error="RuntimeError"), tool(2, "k", attempt=2)], killed=False) == ([], [])
    _, wrong = repeats([tool(1, "k"), tool(2, "k", attempt=2)], killed=True)
    assert wrong == ["tool pay ran again without a reason, key k"]
    _, wrong = repeats([tool(1, "k"), tool(2, "k", attempt=2, process=2)], killed=False)
    assert len(wrong) == 1


def test_gathered_agents_may_interleave_on_one_branch() -> None:
    """Each agent's own order counts, and what the user says."""
    one, two, go = called("a"), called("b"), called("u").model_copy(update={"author": "user"})
    three = called("c").model_copy(update={"author": "other"})
    order = Order(["user", "clerk", "other"], gathered=True)
    run, mixed, wrong = ([go, one, three, two], [go, one, two, three], [go, two, one, three])
    told = [normalized(events, order)[0] for events in (run, mixed)]
    assert told[0] == told[1] != normalized(run, Order(order.authors))[0]
    plain = [normalized([event.model_copy(update={"id": ""}) for event in events], None) for events in (mixed, wrong)]
    assert [names.key("e-1/a") for _, names in plain] == ["i1/c2", "i1/c3"]
    assert normalized([one, go], order)[0] != normalized([go, one], order)[0]


def test_a_counted_model_call_without_its_answer_is_made_again() -> None:
    event = EventLogged(event=Event(author="clerk", invocation_id="e-1", actions=EventActions()))
    counted, temp = ModelCalled(agent="clerk"), TempStateSet(invocation_id="e-1", delta={"temp:a": 1})
    assert whole_steps([event, counted]) == [event]
    assert whole_steps([event, counted, temp]) == [event]
    assert whole_steps([event, temp]) == [event, temp]
    assert whole_steps([counted, event]) == [counted, event]


def test_calls_are_found_by_their_place() -> None:
    one, two = places([called("x"), called("y")]), places([called("p"), called("q")])
    assert one["x"] == two["p"]
    assert one["y"] == two["q"] != one["x"]


def test_the_ledger_outlives_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = Ledger(path)
    first = writer.start(lambda number: tool(number, "k", ended=False))
    writer.end(first)
    writer.note(model="clerk")
    writer.runs_before("w", {"pay": 2})
    reader = Ledger(path)
    assert [(step.number, step.ended) for step in reader.steps] == [(1, True)]
    assert reader.notes == [{"model": "clerk"}]
    second = reader.start(lambda number: tool(number, "k", attempt=2, ended=False))
    assert second.number == 2
    # A repeated attempt is the same run, and two runs came before the cut.
    assert reader.number_of(second) == 3
    with path.open("ab") as file:
        file.write(b'{"line": "no')
    assert len(Ledger(path).steps) == 2


def test_a_report_of_nothing_is_no_proof() -> None:
    assert not Report(()).ok
    good = Verdict("s", "kill", (Cut("here"),))
    bad = Verdict("s", "kill", (Cut("here"), Cut("there", ("tool pay ran 2 times, expected 1",))))
    assert Report((good,)).ok
    assert not Report((good, bad)).ok
    assert str(Report((good, bad))).splitlines() == [
        "ok s (kill, 1 cut points, 0 repeated tool runs)",
        "FAIL s (kill, 2 cut points, 0 repeated tool runs)",
        "  1 of 2 cuts differ; the first, there:",
        "  tool pay ran 2 times, expected 1",
        "1 passed, 1 failed",
    ]
    assert not Verdict("s", "kill", (), "no app").ok


def test_a_scenario_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="turn 1 must have exactly one"):
        parse_scenario({"turns": [{"message": "a", "resume": {"invocation": 1}}]})
    with pytest.raises(DefinitionError, match="cannot read"):
        load_scenario(tmp_path / "none.json")
    (tmp_path / "booking.json").write_text('{"turns": [{"message": "hi"}]}')
    assert load_scenario(tmp_path / "booking.json").name == "booking"


def test_an_app_is_found_by_its_name_and_scripts_by_their_agents() -> None:
    assert target_of(shop.app) == "tests.prove.shop:app"
    assert unscripted(shop.app, {}) == {"clerk": "gemini-2.5-flash"}
    assert unscripted(shop.app, {"clerk": []}) == {}
    with pytest.raises(DefinitionError, match="no such LLM agent; it has clerk"):
        use_script(shop.app, {"nobody": []})
    with pytest.raises(DefinitionError, match="no module holds the app"):
        target_of(shop.app.model_copy())
