"""A step that failed behind others is tried again as often, and as late, as Temporal would try its activity."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.messages.stretches import FailedStep
from perdure.plan.nodes import ToolOptions
from perdure.rules.step_retries import is_final, options_left, pause_behind


def failed(**fields: Any) -> FailedStep:
    return FailedStep(message="it broke", **fields)


@pytest.mark.parametrize(
    ("fields", "options", "final"),
    [
        ({"attempts": 2}, {"max_attempts": 3}, False),
        ({"attempts": 3}, {"max_attempts": 3}, True),
        ({"attempts": 1}, {"max_attempts": 1}, True),
        ({"attempts": 99}, {"max_attempts": 0}, False),
        ({"non_retryable": True}, {"max_attempts": 0}, True),
        ({"error_type": "Declined"}, {"non_retryable": ("Declined",)}, True),
        ({"error_type": "Busy"}, {"non_retryable": ("Declined",)}, False),
    ],
)
def test_it_is_given_up_as_its_options_say(fields: dict[str, Any], options: dict[str, Any], *, final: bool) -> None:
    assert is_final(failed(**fields), ToolOptions(**options)) == final


def test_pauses_grow_to_the_longest_one_and_a_failure_may_say_another() -> None:
    options = ToolOptions(initial_interval=timedelta(seconds=1), backoff=2.0, max_interval=timedelta(seconds=5))
    assert [pause_behind(failed(attempts=number), options) for number in (1, 2, 3, 4, 5_000)] == [1, 2, 4, 5, 5]
    assert pause_behind(failed(attempts=3, pause=0.25), options) == 0.25


@pytest.mark.parametrize(("most", "left"), [(3, 1), (15, 13), (2, 1), (0, 0)])
def test_what_is_left_behind_two_attempts(most: int, left: int) -> None:
    """0 is without limit, which is not what is left of the last one."""
    options = options_left(ToolOptions(max_attempts=most, initial_interval=timedelta(seconds=1)), 2)
    assert (options.max_attempts, options.initial_interval) == (left, timedelta(seconds=4))
