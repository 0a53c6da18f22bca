"""Properties of the projection, over journals that a session's workflow may write."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import ENTRIES, Entry, RunEntry, take
from perdure.journal.fold import apply_entry, fold_journal
from perdure.journal.packing import dump_entries, pack, unpack
from perdure.journal.projection import Projection
from perdure.journal.run_tree import build_runs
from perdure.journal.runs import AgentRun
from tests.journal.machine import JournalMachine

# Derandomized: one commit, one verdict.
bounded = settings(max_examples=60, deadline=None, derandomize=True)


def _journal(choices: list[int], resumable: bool) -> tuple[Entry, ...]:
    return JournalMachine(choices, resumable=resumable).run()


journals = st.builds(_journal, st.lists(st.integers(0, 2**16), min_size=20, max_size=250), st.booleans())


@bounded
def shape(run: AgentRun) -> tuple[object, ...]:
    """Return what a run is, free of the order in which sets print."""
    ids = ([event.id for event in run.own], [event.id for event in run.log], len(run.activities))
    below = [shape(child) for child in run.children]
    return (run.agent, run.branch, run.state, run.ended, run.escalated, ids, below)


@bounded
@given(journals, st.data())
def test_folding_in_two_parts_equals_folding_at_once(entries: tuple[Entry, ...], data: st.DataObject) -> None:
    """What a worker's copy does when a call brings it the entries that it lacks."""
    cut = data.draw(st.integers(0, len(entries)))
    projection = fold_journal(entries[:cut])
    for entry in entries[cut:]:
        apply_entry(projection, entry)
    assert projection == fold_journal(entries)


@bounded
@given(journals)
def test_a_fold_changes_no_entry(entries: tuple[Entry, ...]) -> None:
    """Else two copies that share entries would differ."""
    before = dump_entries(entries)
    fold_journal(entries)
    assert dump_entries(entries) == before


@bounded
@given(journals)
def test_a_journal_survives_json_and_packing(entries: tuple[Entry, ...]) -> None:
    """What continue-as-new and a lost workflow carry over gives the same session."""
    assert ENTRIES.validate_json(dump_entries(entries)) == entries
    unpacked = unpack(pack(entries))
    assert unpacked == entries
    assert fold_journal(unpacked) == fold_journal(entries)


@bounded
@given(journals, st.integers(0, 4000))
def test_pages_put_together_are_the_journal(entries: tuple[Entry, ...], max_bytes: int) -> None:
    together: list[Entry] = []
    while len(together) < len(entries):
        one = tuple(take(entries, len(together), max_bytes))
        assert len(one) == 1 or sum(map(payload_size, one)) <= max_bytes
        together += one
    assert tuple(together) == entries


@bounded
@given(journals)
def test_the_log_only_grows_and_the_calls_answers_only_go_forward(entries: tuple[Entry, ...]) -> None:
    order = ("open", "accepted", "logged")
    projection = Projection()
    seen: list[object] = []
    answers: dict[str, str] = {}
    for entry in entries:
        apply_entry(projection, entry)
        assert projection.events[: len(seen)] == seen
        assert len(projection.events) <= len(seen) + 1
        seen = list(projection.events)
        for call_id, call in projection.calls.items():
            assert order.index(call.answer) >= order.index(answers.get(call_id, "open"))
            answers[call_id] = call.answer
    assert len({event.id for event in projection.events}) == len(projection.events)


@bounded
@given(journals)
def test_state_is_what_the_log_and_the_snapshots_wrote_and_never_temporary(entries: tuple[Entry, ...]) -> None:
    projection = fold_journal(entries)
    assert not any(key.startswith("temp:") for key in projection.state)
    own: dict[str, object] = {"topic": projection.state["topic"]}
    for event in projection.events:
        own.update({key: value for key, value in event.actions.state_delta.items() if key == "a"})
    assert {key: value for key, value in projection.state.items() if ":" not in key} == own


@bounded
@given(journals)
def test_every_accepted_answer_is_logged_or_kept_and_never_before_its_calls_response(
    entries: tuple[Entry, ...],
) -> None:
    projection = fold_journal(entries)
    logged = [event.id for event in projection.events]
    accepted = [entry.event.id for entry in entries if entry.kind == "answer"]
    kept = [event.id for invocation in projection.invocations.values() for event in invocation.answers]
    assert sorted(accepted) == sorted([event_id for event_id in accepted if event_id in logged] + kept)
    for invocation in projection.invocations.values():
        event = projection.loggable_answer(invocation)
        if event is not None:
            assert all(projection.calls[r.id or ""].responded for r in event.get_function_responses())


@bounded
@given(journals)
def test_every_invocation_that_can_go_on_is_rebuilt_from_what_it_logged(entries: tuple[Entry, ...]) -> None:
    """From any prefix and any log, whatever its agents did: a re-entry must never raise."""
    projection = fold_journal(entries)
    for invocation in projection.invocations.values():
        plan = projection.plan_of(invocation)
        if plan is not None and invocation.agent is not None:
            root = build_runs(plan, invocation.agent, invocation.entries).root
            again = build_runs(plan, invocation.agent, _reread(invocation.entries)).root
            assert shape(again) == shape(root)


def _reread(entries: Sequence[RunEntry]) -> list[RunEntry]:
    again = ENTRIES.validate_json(dump_entries(entries))
    return [entry for entry in again if isinstance(entry, RunEntry)]
