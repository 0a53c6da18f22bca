"""Records the histories that tests leave, for the features that no scenario has: `python -m tests.replay.features`.

A file holds all the workflows of one test: a session's runs, other sessions, shared state. Like those of scenarios they
are recorded once for each released version, and never changed or removed. `RECORDED` names the tests.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecution

from perdure.agents.adk_app import AnyApp
from perdure.journal import packing
from tests.replay.record import RELEASE, scrub
from tests.workflows import support

RECORDED: dict[str, tuple[str, ...]] = {
    "test_at_most_once": (
        "test_a_call_that_raised_is_in_doubt_when_it_is_resumed[cached-run again]",
        "test_a_call_that_raised_is_in_doubt_when_it_is_resumed[cached-happened]",
        "test_a_call_that_raised_is_in_doubt_when_it_is_resumed[cached-not happened]",
        "test_a_silent_end_is_in_doubt_at_once",
        "test_a_stop_leaves_the_call_in_doubt_for_the_resume",
        "test_what_no_worker_took_up_was_not_started",
        "test_the_tools_own_function_is_asked_first[happened]",
        "test_the_tools_own_function_is_asked_first[not happened]",
        "test_a_person_is_asked_where_the_function_cannot_tell[failed]",
        "test_siblings_of_a_call_in_doubt_run_once_and_are_kept",
        "test_two_calls_in_doubt_are_asked_about_together",
        "test_a_branch_in_doubt_waits_and_the_others_go_on",
        "test_an_approved_call_that_is_cut_off_is_in_doubt",
        "test_an_app_that_is_not_resumable_fails_and_says_why",
        "test_dropped_coroutines_find_the_doubt_again",
        "test_a_lost_workflow_leaves_the_call_in_doubt",
        "test_a_doubt_survives_continue_as_new",
        "test_a_tool_that_a_worker_lacks_has_not_started",
        "test_long_sessions_of_quick_calls_ask_nothing",
    ),
    "test_deadlines": (
        "test_the_session_answers_for_the_person[value]",
        "test_the_session_answers_for_the_person[error]",
        "test_an_answer_in_time_is_the_answer",
        "test_a_deadline_can_fail_the_invocation_once[live]",
        "test_a_deadline_can_fail_the_invocation_once[re-entered]",
        "test_a_deadline_waits_for_its_turn",
        "test_a_deadline_passes_while_the_invocation_is_stopped[answer]",
        "test_a_deadline_passes_while_the_invocation_is_stopped[fail]",
        "test_a_deadline_passes_in_one_branch_while_another_works",
        "test_a_branch_fails_by_its_deadline_and_the_other_stays_answerable",
        "test_a_deadline_survives_a_lost_workflow",
        "test_a_deadline_survives_continue_as_new",
        "test_the_deadline_of_an_imported_call_counts_from_the_import[answer]",
        "test_a_call_of_a_bare_log_has_its_deadline_once_it_runs_here",
        "test_a_reminder_runs_once_before_the_deadline[fails]",
        "test_nobody_is_reminded_of_what_is_answered",
    ),
    "test_resume_from": (
        "test_a_given_response_is_what_the_model_reacts_to_and_the_tool_does_not_run",
        "test_a_models_unanswered_calls_run_if_the_caller_says_so",
        "test_a_long_running_call_as_the_last_word_runs_and_waits",
        "test_the_answer_to_a_confirmation_runs_what_it_confirms[True]",
        "test_imported_calls_do_not_run_behind_another_trigger",
        "test_an_unknown_author_is_context_and_never_goes_on",
        "test_a_log_replaces_another_and_the_old_one_is_kept",
        "test_shared_keys_of_a_log_stay_its_own",
    ),
    "test_local_tools": (
        "test_a_local_tool_runs_once_and_is_recorded[100]",
        "test_a_local_tool_is_retried_by_its_policy",
        "test_a_local_tool_that_takes_too_long_times_out",
        "test_a_stop_reaches_a_local_tool",
        "test_a_stop_ends_the_pause_before_a_retry",
        "test_a_local_tool_that_a_worker_does_not_have_is_looked_for_elsewhere",
        "test_local_tools_are_drained_before_a_run_continues_as_new",
        "test_a_local_tool_may_ask_for_confirmation",
    ),
    "test_large_arguments": (
        "test_branches_that_send_and_return_large_texts_at_once[100]",
        "test_of_many_local_tools_at_once_some_run_locally",
        "test_agents_that_end_with_a_local_tool_hold_no_place_of_later_turns",
    ),
    "test_large_requests": (
        "test_only_what_is_large_is_sent_ahead",
        "test_what_another_run_got_is_sent_again",
        "test_what_does_not_fit_is_dropped_or_refused[100]",
    ),
    "test_plan_at_hand": (
        "test_a_worker_that_knows_the_namespace_gives_the_plan_itself",
        "test_a_large_plan_comes_by_a_normal_activity",
    ),
    "test_large_journals": (
        "test_a_run_fetches_the_journal_that_no_payload_takes[100]",
        "test_answers_messages_and_signals_wait_for_the_journal",
        "test_a_session_closed_while_it_fetches_its_journal_is_brought_back",
        "test_restore_sends_a_large_journal_in_parts",
        "test_a_part_that_does_not_fold_is_refused_and_harms_nobody",
        "test_a_cancellation_while_the_journal_comes_in_keeps_the_session",
    ),
    "test_continue_as_new": (
        "test_a_long_invocation_goes_on_in_the_next_run[100]",
        "test_open_calls_branches_at_work_and_queued_messages_are_carried",
        "test_what_runs_is_awaited_and_its_result_is_kept",
        "test_answers_and_stops_find_the_next_run",
    ),
    "test_state": (
        "test_temp_state_survives_a_stop_and_a_failure",
        "test_user_and_app_keys_reach_other_sessions_at_their_next_invocation",
        "test_the_state_of_a_message_is_shared_too",
    ),
    "test_change_state": (
        "test_agents_see_a_change_that_came_while_they_waited[cached]",
        "test_a_change_survives_runs_that_continue_as_new",
        "test_a_change_survives_the_loss_of_the_workflow",
    ),
    "test_stop": (
        "test_a_running_async_tool_is_cancelled_and_runs_again[100]",
        "test_a_sync_tool_that_finishes_in_time_keeps_its_result",
        "test_a_model_call_is_cancelled_and_made_again",
        "test_a_waiting_invocation_keeps_its_answers_while_it_is_stopped",
        "test_a_queued_invocation_can_be_stopped",
        "test_what_is_stopped_before_a_plan_is_loaded_can_be_resumed",
        "test_parallel_branches_are_stopped_together",
        "test_calls_of_one_answer_are_stopped_together",
        "test_a_stop_gives_the_turn_to_the_next",
        "test_two_stops_at_once_and_a_resume_amid",
        "test_in_an_app_that_is_not_resumable_a_stop_is_for_good",
    ),
    "test_resume": (
        "test_a_failed_step_runs_again_and_what_completed_does_not",
        "test_completed_agents_iterations_and_branches_do_not_run_again",
        "test_a_failing_invocation_resumed_again_and_again_keeps_one_log[100]",
    ),
    "test_answers": (
        "test_an_answer_before_its_tools_response_is_kept_until_then[signal-pending]",
        "test_one_message_answers_calls_in_several_branches",
        "test_a_signal_answers_and_what_does_not_fit_is_dropped[100]",
    ),
    "test_stretches": (
        "test_a_turn_takes_as_many_activities_as_its_steps_need[3-5]",
        "test_a_turn_takes_as_many_activities_as_its_steps_need[20-1]",
        "test_a_stop_keeps_what_was_done_and_a_resume_goes_on_behind_it",
        "test_a_tool_is_tried_as_often_as_by_itself[2-3-finished]",
        "test_a_model_is_asked_as_often_as_by_itself",
        "test_a_tool_with_options_of_its_own_is_an_activity_of_its_own[_once]",
        "test_no_more_model_calls_are_made_than_are_allowed",
        "test_branches_do_their_steps_each_by_itself",
        "test_what_a_tool_writes_is_seen_by_the_next_step_and_by_other_sessions",
    ),
    "test_turns": ("test_an_answer_to_the_running_invocation_is_logged_at_once[100]",),
    "test_lifetime": (
        "test_branches_of_a_closed_session_go_on_where_they_were",
        "test_a_cancellation_stops_the_invocations_and_keeps_the_session",
    ),
    "test_upgrades": ("test_an_agent_is_added",),
    "test_custom_agents": (
        "test_what_a_custom_agent_did_is_not_done_twice[kept-False]",
        "test_what_a_custom_agent_did_is_not_done_twice[stopped-False]",
        "test_a_checkpoint_lets_a_sub_agent_run_again",
        "test_what_fails_in_a_custom_agent_is_told[Failing-fail-no quotes today]",
        "test_a_failure_that_was_dealt_with_is_none",
        "test_a_failure_that_was_dealt_with_is_met_again[model-continued as new]",
        "test_a_failure_that_was_dealt_with_is_met_again[charge-stopped]",
        "test_what_an_agent_fails_by_in_the_end_is_tried_again",
        "test_gathered_sub_agents_go_on_where_they_were[continued as new]",
    ),
}
"""Names of tests, by the module in `tests/workflows` that holds them."""

FEATURES = RELEASE / "features"

_LIMITS = ("MAX_PAYLOAD_BYTES", "MAX_PART_BYTES")
"""What a test makes smaller than it is, and a replay too: it decides how a journal is handed over."""


class Recorder:
    """A pytest plugin that writes what each test leaves on its server."""

    def __init__(self) -> None:
        self._test = ""
        self.written: list[str] = []

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remember which test it is."""
        self._test = item.name.removeprefix("test_")

    async def record(self, client: Client, app: AnyApp) -> None:
        """Write the histories of all of an app's workflows, as they are now."""
        found: list[WorkflowExecution] = [run async for run in client.list_workflows(f"WorkflowType = '{app.name}'")]
        found += [
            run async for run in client.list_workflows() if run.id.startswith(f"{app.name}/") and run not in found
        ]
        runs = {run.run_id: run for run in sorted(found, key=lambda run: run.start_time)}
        workflows: list[dict[str, Any]] = []
        for run in runs.values():
            history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            workflows.append({"workflow_id": run.id, "history": scrub(json.loads(history.to_json()))})
        limits = {name: getattr(packing, name) for name in _LIMITS}
        document = {"test": self._test, "app": app.name, "limits": limits, "workflows": workflows}
        text = json.dumps(document, separators=(",", ":")) + "\n"
        path = FEATURES / f"{file_name(self._test)}.json.gz"
        # Without a time, so that the same histories make the same file.
        path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        self.written.append(path.name)


def file_name(test: str) -> str:
    """Return a test's name, parameters included, as a file's name."""
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in test).strip("_")


def read_feature(path: Path) -> dict[str, Any]:
    """Return a recorded file's document."""
    return json.loads(gzip.decompress(path.read_bytes()))


def main() -> int:
    """Run the tests and record what they leave."""
    FEATURES.mkdir(parents=True, exist_ok=True)
    tests = Path(__file__).parents[1]
    files = {file.stem: file for folder in ("sessions", "workflows") for file in (tests / folder).glob("test_*.py")}
    wanted = [f"{files[module]}::{test}" for module, names in RECORDED.items() for test in names]
    recorder = Recorder()
    support.ON_END.append(recorder.record)
    # What this module has imported already has plain assertions, which is no mistake here.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    failed = pytest.main([*options, *(sys.argv[1:] or wanted)], plugins=[recorder])
    # All of them, unless some were asked for.
    expected = (
        set[str]() if sys.argv[1:] else {file_name(t.removeprefix("test_")) for ts in RECORDED.values() for t in ts}
    )
    missing = expected - {name.removesuffix(".json.gz") for name in recorder.written}
    for name in sorted(missing):
        print(f"not recorded: {name}")
    return int(failed) or len(missing)


if __name__ == "__main__":
    raise SystemExit(main())
