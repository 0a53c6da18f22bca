"""What a rebuilt journal says of at-most-once calls that failed, which is what the workflow would say."""

from __future__ import annotations

from typing import Literal

import pytest
from google.genai import types
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure, TimeoutFailureInfo

from perdure.journal.entries import ToolRan, ToolStarted
from perdure.journal.events import REQUEST_RECONCILE
from perdure.messages.session import NOT_REGISTERED, ToolInput
from perdure.plan.nodes import LlmNode, Plan, ToolPlan
from perdure.recovery.doubt_questions import Questions
from perdure.recovery.rebuilding import Rebuilder
from perdure.rules.in_doubt import ALREADY_STARTED, LOST_START, NOT_CLAIMED
from tests.journal.sample_entries import called, fold, message, started

CALL = ToolInput(agent="root", tool="ask", function_call_id="c1", invocation_id="i1")
NOTED = ToolStarted(invocation_id="i1", call_id="c1", agent="root", tool="ask", idempotency_key="i1/c1", timestamp=8.0)
TIMED_OUT = Failure(message="late", timeout_failure_info=TimeoutFailureInfo())


def failure(kind: str) -> Failure:
    return Failure(message="no", application_failure_info=ApplicationFailureInfo(type=kind))


def rebuilt(
    failed: Failure,
    on_failure: Literal["fail", "tell_model"] = "fail",
    *,
    reconcile: bool = False,
    resumable: bool = True,
    told: bool = False,
) -> tuple[Rebuilder, bool, int]:
    """Return the journal behind a failed call, whether the call is in doubt, and how often somebody is asked.

    Args:
        failed: What the call failed of.
        on_failure: Of the tool.
        reconcile: The tool has a function for it.
        resumable: The app is.
        told: The journal holds what was noted of it already.
    """
    declaration = types.FunctionDeclaration(name="ask")
    tool = ToolPlan(name="ask", declaration=declaration, at_most_once=True, reconcile=reconcile, on_failure=on_failure)
    plan = Plan(app="shop", resumable=resumable, root=LlmNode(name="root", model="scripted", tools=(tool,)))
    begun = started(1).model_copy(update={"plan": plan.digest})
    entries = fold(message(1), begun, called(1, "c1", long_running=False), NOTED, plan=plan).entries
    ran = ToolRan(call_id="c1", outcome="lost", started=8.0, ended=8.5, cause="no")
    journal = Rebuilder([*entries, *([ran] if told else [])], "seed")
    questions = Questions(journal, "seed")
    questions.scheduled(5, CALL)
    in_doubt = questions.failed(5, failed, 9.0)
    questions.ask(journal.projection.invocations["i1"], 10.0)
    requests = [call for event in journal.projection.events for call in event.get_function_calls()]
    return journal, in_doubt, sum(call.name == REQUEST_RECONCILE for call in requests)


SILENT = {kind: failure(kind) for kind in (ALREADY_STARTED, LOST_START, "WorkerShutdown")} | {"timeout": TIMED_OUT}


@pytest.mark.parametrize("on_failure", ["fail", "tell_model"])
@pytest.mark.parametrize("failed", SILENT.values(), ids=SILENT)
def test_a_call_that_did_not_say_itself_that_it_failed_is_in_doubt(
    failed: Failure, on_failure: Literal["fail", "tell_model"]
) -> None:
    _, in_doubt, asked = rebuilt(failed, on_failure)
    assert (in_doubt, asked) == (True, 1)


@pytest.mark.parametrize("resumable", [True, False])
def test_a_call_that_raised_is_in_doubt_where_its_model_would_be_told(resumable: bool) -> None:
    """In an app that is not resumable nobody is asked: the model is told of the doubt, and the invocation goes on."""
    _, in_doubt, asked = rebuilt(failure("RuntimeError"), "tell_model", resumable=resumable)
    assert (in_doubt, asked) == (True, int(resumable))
    assert not rebuilt(failure("RuntimeError"), resumable=resumable)[1]


@pytest.mark.parametrize("kind", [NOT_REGISTERED, NOT_CLAIMED])
def test_a_call_that_was_not_started_is_in_no_doubt(kind: str) -> None:
    assert not rebuilt(failure(kind), "tell_model")[1]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("resumable", [True, False])
def test_the_journal_says_once_that_a_reset_has_lost_another_start(resumable: bool, told: bool) -> None:
    """So the tool's own function is not asked: it would look for the key of a call that was never started."""
    journal, in_doubt, asked = rebuilt(failure(LOST_START), reconcile=True, resumable=resumable, told=told)
    (ran,) = [entry for entry in journal.projection.entries if isinstance(entry, ToolRan)]
    assert (ran.call_id, ran.outcome, ran.started, ran.cause) == ("c1", "lost", 8.0, "no")
    assert (in_doubt, asked) == (resumable, int(resumable))
    # Of its own start it could tell.
    journal, _, asked = rebuilt(failure(ALREADY_STARTED), reconcile=True)
    assert (journal.projection.tool_runs, asked) == ({}, 0)
