"""Which tests `make test` leaves to `make test-long`: more cases of what others show already, and most benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import pytest

LONG = (
    # Further scenarios and modes of the proof; `make prove` has all of them.
    "tests/prove/test_proofs.py::test_a_scenario_can_be_cut_anywhere[[]prefix-tool_failure]",
    "tests/prove/test_proofs.py::test_a_scenario_can_be_cut_anywhere[[]prefix-failure_in_sub_agent]",
    "tests/prove/test_proofs.py::test_a_scenario_can_be_cut_anywhere[[]prefix-orphan_waiting_without_a_first_value]",
    "tests/prove/test_proofs.py::test_a_scenario_can_be_cut_anywhere[[]kill-no_answer_asked_again]",
    "tests/prove/test_proofs.py::test_an_agent_that_a_tool_runs_can_be_cut_anywhere[[]kill]",
    "tests/prove/test_random_graphs.py::*",
    "tests/prove/test_random_custom_agents.py::test_a_random_custom_agent_can_be_cut_anywhere",
    "tests/adk/test_prove.py::test_a_graph_can_be_cut_anywhere[[]prefix]",
    "tests/adk/test_prove.py::test_a_graph_can_be_cut_anywhere[[]replay]",
    "tests/adk/test_prove.py::test_tasks_of_agents_can_be_cut_anywhere[[]kill]",
    "tests/adk/test_prove.py::test_tasks_of_agents_can_be_cut_anywhere[[]replay]",
    # Sessions that other versions of google-adk stored.
    "tests/workflows/test_adk_sessions.py::test_every_prefix_ends_*-1.[23]*]",
    # Sizes of megabytes, without a cache, and beside hundreds of looks.
    "tests/workflows/test_large_arguments.py::test_branches_that_send_and_return_large_texts_at_once[[]0]",
    "tests/workflows/test_large_requests.py::test_many_large_messages_at_once[[]0]",
    "tests/workflows/test_large_journals.py::test_twenty_megabytes_of_events_go_on",
    "tests/attacks/test_looks.py::test_a_hundred_at_once_*[[]local tools-*]",
    "tests/attacks/test_error_texts.py::test_no_route_tells_an_end_user_what_an_error_says[[]shown]",
    # Widths and colours of screens between the narrowest and the widest, both of which stay.
    "tests/api/pages/test_chat_browser.py::test_the_chat_is_accessible[[]1000-*]",
    "tests/api/pages/test_chat_browser.py::test_the_chat_is_accessible[[]1440-light]",
    "tests/docs/test_site_browser.py::test_the_site_is_read_on_any_screen[[]1440-dark]",
    "tests/docs/test_site_browser.py::test_the_site_is_read_on_any_screen[[]380-light]",
    # Further kinds of projects, of programs, and of the plug-ins that a project's tests run with.
    "tests/cli/new/test_new.py::test_what_is_made_runs_by_the_commands_that_are_printed[[]tree]",
    "tests/cli/new/test_new.py::test_what_is_made_runs_by_the_commands_that_are_printed[[]human]",
    "tests/cli/new/test_new.py::test_what_is_made_runs_by_the_commands_that_are_printed[[]adk]",
    "tests/programs/test_execute.py::test_the_program_runs_as_by_python[[]module]",
    "tests/testing/test_plugin.py::test_async_tests_run_with_any_plugin[[]no plugin]",
    "tests/testing/test_plugin.py::test_async_tests_run_with_any_plugin[[]pytest-asyncio, auto]",
    "tests/testing/test_plugin.py::test_async_tests_run_with_any_plugin[[]anyio]",
    # The benchmarks run.
    "tests/test_bench.py::test_s[ct]*",
    "tests/test_bench.py::test_reads",
    "tests/test_bench.py::test_lengths",
    "tests/test_bench.py::test_goals",
    "tests/test_bench.py::test_workers",
)
"""Patterns of names, as pytest prints them."""


def mark_long(items: Iterable[pytest.Item]) -> None:
    """Mark what is on the list."""
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)


def is_long(name: str, patterns: Sequence[str] = LONG) -> bool:
    """Return whether a test is on the list."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
