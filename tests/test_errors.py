"""Texts of exceptions: readable whatever they hold, and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import MAX_ERROR_TEXT, error_text, message_of, shortened
from perdure.rules.failures import error_text as failure_text


class Odd(Exception):
    def __init__(self, text: Any) -> None:
        super().__init__()
        self.text = text

    def __str__(self) -> str:
        if isinstance(self.text, BaseException):
            raise self.text
        return self.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError(" \n\t"), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (SystemExit(2), "SystemExit: 2"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Odd(ZeroDivisionError()), "Odd: (its text cannot be made: ZeroDivisionError)"),
        (Odd(KeyboardInterrupt()), "Odd: (its text cannot be made: KeyboardInterrupt)"),
        (Odd(5), "Odd: (its text cannot be made: TypeError)"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (
            ExceptionGroup("g", [ValueError("a"), Odd("b")]),
            "ExceptionGroup: g (2 sub-exceptions): ValueError: a; Odd: b",
        ),
        (
            BaseExceptionGroup("g", [KeyboardInterrupt()] * 9),
            "BaseExceptionGroup: g (9 sub-exceptions): KeyboardInterrupt; KeyboardInterrupt; KeyboardInterrupt",
        ),
    ],
)
def test_an_exception_is_told_by_type_and_text(error: BaseException, told: str) -> None:
    assert error_text(error) == told
    told.encode()


@pytest.mark.parametrize("more", [65, 1_000, 3_000_000])
@pytest.mark.parametrize("character", ["x", "é", "\U0001f600", "\n", "\0"])
def test_of_a_long_text_the_beginning_is_told_and_how_much_was_left_out(character: str, more: int) -> None:
    text = "!" + character * (MAX_ERROR_TEXT - 1 + more)
    cut = message_of(ValueError(text))
    assert cut == f"{text[:MAX_ERROR_TEXT]} … ({more:,} more characters)"
    assert shortened(cut) == cut, "a text is cut once"


def test_a_text_that_hardly_is_too_long_is_whole() -> None:
    assert message_of(ValueError("x" * (MAX_ERROR_TEXT + 10))) == "x" * (MAX_ERROR_TEXT + 10)


def test_a_group_in_a_group_without_end_is_told() -> None:
    error: Any = ValueError("x" * 10_000)
    for _ in range(3000):
        error = ExceptionGroup("of one", [error])
    assert error_text(error).startswith("ExceptionGroup: of one (1 sub-exception): ExceptionGroup: of one")


def test_an_activity_that_failed_without_a_text_is_told_by_its_type() -> None:
    """Perdure's own sentences need no type, unless they say nothing."""
    assert failure_text("ValueError", "") == "ValueError"
    # What the SDK makes of no text.
    assert failure_text("ValueError", "Application error") == "ValueError"
    assert failure_text("ModelError", "") == "ModelError"
    assert failure_text("ModelError", "it refused") == "it refused"
    assert failure_text(None, "words") == "words"
