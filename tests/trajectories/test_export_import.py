"""Sessions in files: what comes back, byte for byte, and which files are refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.client import Client

from perdure.agents import FunctionTool, ParallelAgent
from perdure.cli import run_command
from perdure.errors import InvalidTrajectory, SessionExists, SessionNotFound
from perdure.journal.entries import (
    Entry,
    EventLogged,
    InvocationSettled,
    InvocationStarted,
    LogImported,
    MessageAccepted,
    SessionCreated,
    SharedStateRead,
)
from perdure.journal.events import USER, Event, EventActions, user_content
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.trajectories.bare_log import to_journal
from perdure.trajectories.export_file import dump_lines, make_header
from perdure.trajectories.given_logs import read_given
from tests.conformance.journals import record
from tests.conformance.logs import all_scenarios, expected_turns
from tests.conformance.scenario import Scenario
from tests.exports import by_hand
from tests.journal.machine import JournalMachine
from tests.workflows.support import (
    Counted,
    Gate,
    GatedModel,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    serving,
    text,
)

SCENARIOS = {scenario.name: scenario for scenario in all_scenarios()}
KEY = SessionKey("shop", "u", "s")


def fresh_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"x{next(numbers)}"


def export(entries: Iterable[Entry], *, journal: bool) -> list[str]:
    entries = tuple(entries)
    header = make_header(KEY, fold_journal(entries), journal=journal, versions={"perdure": "0"})
    return list(dump_lines(header, entries))


def imported(lines: Iterable[str | bytes]) -> tuple[Entry, ...]:
    """Return the journal that an import starts a session with."""
    log = read_given(lines)
    return (*to_journal(log, fresh=fresh_ids()), LogImported(plan_digest=log.plan_digest))


@pytest.mark.parametrize("journal", [False, True], ids=["events", "journal"])
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_round_trip_is_equal_byte_for_byte(scenario: Scenario, *, journal: bool) -> None:
    entries = record(scenario).entries
    lines = export(entries, journal=journal)
    assert export(imported(lines), journal=journal) == lines
    before, after = fold_journal(entries), fold_journal(imported(lines))
    assert (after.events, after.state) == (before.events, before.state)
    assert {i.id: i.status for i in after.invocations.values()} == {i.id: i.status for i in before.invocations.values()}


def test_without_perdures_lines_an_export_is_the_plain_log() -> None:
    entries = record(SCENARIOS["lro_pending"]).entries
    plain = [event.to_json() for event in fold_journal(entries).events]
    for journal in (False, True):
        lines = export(entries, journal=journal)
        assert [line for line in lines if "perdure" not in json.loads(line)] == plain


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**16), min_size=20, max_size=200), st.booleans())
def test_any_journal_that_a_session_writes_comes_back(choices: list[int], resumable: bool) -> None:
    """At any moment of its life; only what was at work or in the queue is stopped."""
    entries = JournalMachine(choices, resumable=resumable).run()
    lines = export(entries, journal=True)
    assert read_given(lines).entries == entries
    assert export(imported(lines), journal=True) == lines
    after = fold_journal(imported(lines))
    assert after.turns == []
    assert not {"running", "queued"} & {invocation.status for invocation in after.invocations.values()}


ODD_PARTS = [
    types.Part(text="hm", thought=True, thought_signature=bytes(range(256))),
    types.Part(text="so", thought_signature=b"\xff\xfe\xfb"),
    types.Part(function_call=types.FunctionCall(id="c1", name="look", args={"a": None}), thought_signature=b"\x00"),
    types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)),
    types.Part(code_execution_result=types.CodeExecutionResult(output="2", outcome=types.Outcome.OUTCOME_OK)),
    types.Part(inline_data=types.Blob(data=bytes(range(255, -1, -1)), mime_type="image/png", display_name="é\u2028")),
    types.Part(
        file_data=types.FileData(file_uri="gs://x/y", mime_type="video/mp4"), video_metadata=types.VideoMetadata(fps=2)
    ),
]
"""What a provider may put into an answer, opaque to everybody else."""


def odd_event() -> Event:
    return Event.model_validate(
        {
            "id": "e1",
            "author": "clerk",
            "invocation_id": "i1",
            "timestamp": 1764000000.1234567,
            "content": types.Content(role="model", parts=ODD_PARTS),
            "actions": EventActions(state_delta={"x": {"y": None}}),
            "fromTheFuture": {"a": [None, 1.5, "é"]},
        }
    )


@pytest.mark.parametrize("journal", [False, True], ids=["events", "journal"])
def test_what_providers_and_later_versions_add_comes_back_as_it_was(*, journal: bool) -> None:
    message = Event(id="m", author=USER, invocation_id="i1", timestamp=1.0, content=user_content("hi"))
    entries: list[Entry] = [
        SessionCreated(state={"none": None}),
        MessageAccepted(event=message),
        InvocationStarted(invocation_id="i1", agent="clerk", plan="d", timestamp=1.0),
        EventLogged(event=odd_event()),
        InvocationSettled(invocation_id="i1", status="stopped"),
    ]
    lines = export(entries, journal=journal)
    session = fold_journal(imported(lines))
    assert session.events[1] == odd_event()
    assert session.events[1].to_json() == odd_event().to_json()
    assert session.state == {"none": None, "x": {"y": None}}
    assert export(imported(lines), journal=journal) == lines


def test_a_rewind_that_takes_out_an_answer_of_an_earlier_invocation_comes_back() -> None:
    """What a rewind took out may be of an invocation that stays: what came of it in between."""
    log = [event for turn in expected_turns(SCENARIOS["two_invocations_pending"]) for event in turn]
    rewind = EventActions(rewind_before_invocation_id="i2")
    log.append(Event(id="r", author=USER, invocation_id="i9", timestamp=99.0, actions=rewind))
    session = fold_journal(imported(event.to_json() for event in log))
    assert session.calls["c1"].answer == "open"
    again = fold_journal(imported(export(session.entries, journal=True)))
    assert (again.events, again.calls["c1"].answer) == (session.events, "open")


def test_the_header_gives_the_state_that_the_log_starts_from() -> None:
    message = Event(id="m", author=USER, invocation_id="i1", content=user_content("hi"))
    wrote = Event(id="e", author="a", invocation_id="i1", actions=EventActions(state_delta={"k": 2, "user:x": 1}))
    entries: list[Entry] = [
        SessionCreated(state={"k": 1, "z": 0}),
        MessageAccepted(event=message),
        InvocationStarted(invocation_id="i1", agent="a", plan="d", timestamp=1.0),
        EventLogged(event=wrote),
        # Another session wrote since, so no log of this one gives these.
        SharedStateRead(state={"user:x": 5, "app:y": 1}),
    ]
    lines = export(entries, journal=False)
    header = json.loads(lines[0])["perdure"]
    assert header["state"] == {"app:y": 1, "k": 1, "z": 0}
    assert header["shared"] == {"app:y": 1, "user:x": 5}
    assert fold_journal(imported(lines)).state == fold_journal(entries).state


def file(*values: Any, journal: bool = True) -> list[str]:
    header = json.dumps(
        {"perdure": {"format": 1, "app": "shop", "user_id": "u", "session_id": "s", "journal": journal}}
    )
    return [header, *(value if isinstance(value, str) else json.dumps(value) for value in values)]


def entry(kind: str, **fields: Any) -> dict[str, Any]:
    return {"perdure": {"entry": {"kind": kind, **fields}}}


FIRST = entry("session", state={})
MESSAGE = {"id": "m", "author": "user", "invocationId": "i1", "content": {"role": "user", "parts": [{"text": "hi"}]}}
ACCEPTED = entry("message", event=MESSAGE)
STARTED = entry("started", invocation_id="i1", agent="a", plan="d", timestamp=0.0)
SHOWN = Event.model_validate(MESSAGE).to_json()

HIDDEN = {"author": "a", "invocationId": "i1", "content": {"parts": [{"functionCall": {"id": "c", "name": "n"}}]}}

REWINDS = {"actions": {"rewindBeforeInvocationId": "i1"}}

MALFORMED: dict[str, tuple[list[str], str]] = {
    "nothing": ([""], "this is empty. Perdure takes an export"),
    "no log at all": (["shopping: milk"], "line 1 is no JSON: .*Perdure takes an export"),
    "a header of a later format": (['{"perdure": {"format": 2}}'], "line 1: .* from a newer Perdure; .* format 1,"),
    "a header of no format": (['{"perdure": {"format": 0}}'], "line 1: the header is malformed"),
    "no JSON": (file(FIRST, "{oops"), "line 3 is no JSON"),
    "JSON that is nested without end": (file("[" * 100_000), "line 2 is no JSON"),
    "no object": (file("[1]"), "line 2 is no JSON object"),
    "a line that is too long": (file('"' + "x" * 2_000_000 + '"'), "line 2 has more than the 1.9 MB"),
    "no event": (file({"author": 1}, journal=False), "line 2 is no ADK event: author"),
    "an entry among events": (file(FIRST, journal=False), "line 2 is an entry of Perdure's"),
    "a part that nobody knows": (
        file({"author": "a", "content": {"parts": [{"novelty": 1}]}}, journal=False),
        "line 2 is no ADK event: content.parts.0.novelty: Extra inputs",
    ),
    "no entries": (file(), "the export holds no entries"),
    "an entry of no kind": (file(entry("magic")), "line 2 is no entry of a journal"),
    "a mark without an entry": (file({"perdure": 1}), "line 2 is no entry"),
    "no first entry": (
        file(entry("plan", plan={"app": "x", "root": {"kind": "llm", "name": "a", "model": "m"}})),
        "line 2: a journal starts",
    ),
    "two first entries": (file(FIRST, FIRST), "line 3: a journal starts"),
    "a permission": (
        file(FIRST, entry("imported", allow_pending_calls=True)),
        "line 3: an export does not hold permissions",
    ),
    "an unknown invocation": (file(FIRST, STARTED), r"line 3: the entry 'started' does not fit .* \(KeyError: 'i1'\)"),
    "an event without a message": (
        file(FIRST, {"author": "a", "invocationId": "i9"}),
        "line 3: no message has started",
    ),
    "a user's event as an agent's": (
        file(FIRST, ACCEPTED, entry("event", event=MESSAGE)),
        "line 4: an event of 'user'",
    ),
    "an agent's event as a user's": (
        file(FIRST, entry("message", event=MESSAGE | {"author": "a"})),
        "line 3: an event of 'a'",
    ),
    "a message twice": (
        file(FIRST, ACCEPTED, entry("message", event=MESSAGE | {"id": "n"})),
        "line 4: invocation 'i1' has",
    ),
    "an event id twice": (
        file(FIRST, ACCEPTED, entry("message", event=MESSAGE | {"invocationId": "i2"})),
        "line 4: the event id 'm'",
    ),
    "a start twice": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, STARTED),
        "line 6: the entry 'started' logs an event for the second",
    ),
    "another event than the entry's": (
        file(FIRST, ACCEPTED, STARTED, MESSAGE | {"id": "n"}),
        "line 4: the next line is not",
    ),
    "a user's event that is missing": (file(FIRST, ACCEPTED, STARTED), "line 4: the next line is not"),
    "calls that readers do not see": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, entry("event", hidden=True, event=HIDDEN)),
        "line 6: only checkpoints and ends are hidden",
    ),
    "a branch that is none": (
        file(
            FIRST,
            ACCEPTED,
            STARTED,
            SHOWN,
            entry("failure_caught", invocation_id="i1", agent="a", branch="x", failures=[]),
        ),
        "line 6: the branch 'x' does not consist",
    ),
    "an event without an id": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, {"author": "a", "invocationId": "i1"}),
        "line 6: the event has no id",
    ),
    "an event of an invocation that has not begun": (
        file(FIRST, ACCEPTED, {"author": "a", "invocationId": "i1", "id": "n"}),
        "line 4: invocation 'i1' has not begun",
    ),
    "a rewind in an agent's event": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, {"author": "a", "invocationId": "i1", "id": "n"} | REWINDS),
        "line 6: a rewind stands in the entry 'event'",
    ),
    "an answer that answers nothing": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, entry("answer", event=MESSAGE | {"id": "n"})),
        "line 6: the entry 'answer' holds no answer",
    ),
    "an id of any length": (
        file(FIRST, ACCEPTED, STARTED, SHOWN, {"author": "a", "invocationId": "i" * 1_000_000}),
        r"line 6: no message has started invocation 'i{99}… \(1,000,002 characters\)$",
    ),
    "a response to nothing": (
        file(
            FIRST,
            ACCEPTED,
            STARTED,
            SHOWN,
            {
                "author": "a",
                "invocationId": "i1",
                "content": {"parts": [{"functionResponse": {"id": "c", "name": "n", "response": {}}}]},
            },
        ),
        "line 6 responds to the call 'c', which the log does not hold",
    ),
}


@pytest.mark.parametrize(("lines", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_is_refused_with_the_line(lines: list[str], reason: str) -> None:
    with pytest.raises(InvalidTrajectory, match=reason):
        to_journal(read_given(lines), fresh=fresh_ids())


def test_the_file_that_those_were_made_from_is_fine() -> None:
    lines = [line.encode() + b"\r\n" for line in file(FIRST, ACCEPTED, STARTED, SHOWN, "", "  ")]
    assert len(read_given(lines).entries or ()) == 3


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    line = "x" * 1_000_000
    taken = itertools.count()

    def endless() -> Iterator[str]:
        yield file(journal=False)[0]
        while next(taken) < 1_000:
            yield json.dumps({"author": "a", "content": {"parts": [{"text": line}]}})

    with pytest.raises(InvalidTrajectory, match="line 51: the log has more than the 50 MB of one import"):
        read_given(endless())
    assert next(taken) == 50


# On a server.


async def exported(user: User, *, journal: bool = True) -> list[str]:
    return [line async for line in user.runner.export_session(**user.who, journal=journal)]


def without_names(lines: list[str]) -> list[Any]:
    header = json.loads(lines[0])["perdure"]
    names = ("app", "user_id", "session_id", "sha256")
    return [{key: value for key, value in header.items() if key not in names}, *lines[1:]]


@pytest.mark.server
async def test_a_waiting_session_is_answered_on_another_app_under_its_old_ids(client: Client, app_name: str) -> None:
    """The second app stands for another server: it knows nothing of the first."""

    def clerk() -> Any:
        return agent(
            "clerk", [calls("look"), calls("pick"), text("booked")], [Counted("look").fn, long_running("pick")]
        )

    async with serving(client, make_app(app_name, clerk())) as user:
        await user.create(topic="Oslo")
        waiting = await user.run("book")
        lines = await exported(user)
        plain = await exported(user, journal=False)
        expected = await user.events()
    model_calls = GatedModel([text("never"), text("never"), text("booked")])
    again = agent("clerk", model_calls, [Counted("look").fn, long_running("pick")])
    async with serving(client, make_app(f"{app_name}_b", again)) as user:
        for name, source in (("exact", lines), ("plain", plain)):
            made = await user.runner.import_session(source, session_id=name)
            session = user.other(session_id=name)
            assert (made.app_name, made.user_id, made.session_id) == (f"{app_name}_b", "u", name)
            assert made.event_count == len(expected)
            assert await session.events() == expected
            assert (await session.view()).state == {"topic": "Oslo"}
            assert without_names(await exported(session, journal=name == "exact")) == without_names(source)
            (call,) = waiting.pending
            assert [call.id for call in made.invocations[0].pending] == [call.id]
            answered = await session.answered({call.id: {"flight": "SK 1"}})
            assert (answered.id, answered.status) == (waiting.id, "finished")
            assert (await session.log())[-2:] == ["user answers pick", "clerk: booked"]


@pytest.mark.server
async def test_an_import_is_listed_with_what_it_waits_for(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [calls("pick")], [long_running("pick")]))) as user:
        await user.create()
        await user.run("book")
        await user.runner.import_session(await exported(user), session_id="copy")

        async def is_listed() -> bool:
            found = await user.runner.list_sessions()
            return ("copy", "waiting", ("pick",)) in [(one.id, one.status, one.pending_tools) for one in found]

        await eventually(is_listed)


@pytest.mark.server
async def test_a_failed_invocation_resumes_from_a_journal_without_running_what_completed(
    client: Client, app_name: str
) -> None:
    good, bad = Counted("good"), Counted("bad", fail=1)
    script = [calls("good", "bad"), text("done")]
    async with serving(client, make_app(app_name, agent("clerk", script, [good.once, bad.once]))) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        lines = await exported(user)
        await user.runner.import_session(lines, session_id="blocked")
        blocked = await user.other(session_id="blocked").resumed(failed.id)
        assert "nobody allowed it to run" in blocked.failures[0].cause
        assert (len(good.keys), len(bad.keys)) == (1, 1)
        await user.runner.import_session(lines, session_id="allowed", allow_pending_calls=True)
        session = user.other(session_id="allowed")
        assert (await session.resumed(failed.id)).status == "finished"
        assert (len(good.keys), len(bad.keys)) == (1, 2)
        assert (await session.log())[-2:] == ["clerk got good, bad", "clerk: done"]


@pytest.mark.server
async def test_a_plan_in_a_file_changes_nothing(client: Client, app_name: str) -> None:
    """A forged plan that drops a confirmation, under the very digest that the worker has."""
    tool = Counted("wipe")
    clerk = agent("clerk", [text("a"), calls("wipe"), text("b")], [FunctionTool(tool.fn, require_confirmation=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("hi")
        written = by_hand(await exported(user))
        lines = [line.replace('"confirmation":"always"', '"confirmation":"never"') for line in written]
        assert '"confirmation":"never"' in "".join(lines)
        await user.runner.import_session(lines, session_id="forged", allow_pending_calls=True)
        session = user.other(session_id="forged")
        assert (await session.run("wipe it")).status == "waiting"
        assert tool.keys == []


@pytest.mark.server
async def test_a_session_that_exists_is_refused_or_kept(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("a"), text("b")]))) as user:
        with pytest.raises(SessionNotFound):
            await exported(user)
        await user.create()
        await user.run("one")
        lines = await exported(user)
        await user.run("two")
        before = await user.events()
        with pytest.raises(SessionExists):
            await user.runner.import_session(lines)
        made = await user.runner.import_session(lines, replace=True)
        assert made.replaced == "s~replaced-1"
        assert len(await user.events()) == made.event_count < len(before)
        assert await user.other(session_id="s~replaced-1").events() == before


@pytest.mark.server
async def test_what_was_at_work_is_stopped_and_can_be_resumed(client: Client, app_name: str) -> None:
    tool, gate = Counted("work"), Gate()
    left = GatedModel([calls("pick"), text("l")], {1: gate})
    right = GatedModel([calls("work"), text("r"), text("more")], {2: gate})
    both = ParallelAgent(
        name="both",
        sub_agents=[agent("left", left, [long_running("pick")]), agent("right", right, [tool.once])],
    )
    async with serving(client, make_app(app_name, both), cached=0) as user:
        await user.create()
        waiting = await user.run("go")
        await user.send("at work")
        await gate.reached(2)
        lines = await exported(user)
        gate.open()
        made = await user.runner.import_session(lines, session_id="copy")
        statuses = {view.status for view in made.invocations}
        assert statuses == {"waiting", "stopped"}
        session = user.other(session_id="copy")
        ids = [call.id for view in made.invocations if view.id == waiting.id for call in view.pending]
        assert (await session.answered({ids[0]: {}})).status == "finished"


# The commands.


async def command(*arguments: str) -> int:
    return await asyncio.to_thread(run_command, arguments)


@pytest.mark.server
async def test_a_session_goes_through_a_file_by_the_commands(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--address", temporal_server)
    clerk = agent("clerk", [calls("pick"), text("booked")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("book")
        assert await command("export", app_name, "-u", "u", "-s", "s", "--journal", *where) == 0
        path = tmp_path / "s.jsonl"
        path.write_text(capsys.readouterr().out)
        assert path.read_text().splitlines() == await exported(user)

        assert await command("import", str(path), *where) == 1
        assert "has a session 's' of user 'u' already" in capsys.readouterr().err

        assert await command("import", str(path), "--user", "v", "--session", "copy", *where) == 0
        said = capsys.readouterr()
        assert said.out == f"session copy of user v in app {app_name}: {len(await user.events())} events\n"
        assert f"perdure pending {app_name}" in said.err
        copy = user.other(user_id="v", session_id="copy")
        assert (await copy.answered({waiting.pending[0].id: {}})).status == "finished"

        assert await command("import", str(path), "--replace", "--json", *where) == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["session_id"], made["replaced"]) == ("s", "s~replaced-1")


@pytest.mark.server
async def test_the_command_refuses_a_file_with_the_line(
    temporal_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.jsonl"
    for lines, reason in (
        (file(FIRST, "{oops"), "line 3 is no JSON"),
        (["x" * 3_000_000], "line 1 is no JSON"),
        ([], "this is empty. Perdure takes an export"),
    ):
        path.write_text("\n".join(lines))
        assert await command("import", str(path), "--address", temporal_server) == 1
        assert reason in capsys.readouterr().err
