"""What the braces in an instruction stand for."""

from __future__ import annotations

import pytest

from perdure.agents.placeholders import artifact_names, required_keys, resolve_instruction
from perdure.errors import ModelError

STATE = {"name": "Ada", "user:tone": "dry", "count": 3, "nothing": None}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Hello {name}.", "Hello Ada."),
        ("{ name } {{name}}", "Ada Ada"),
        ("{user:tone} x{count}", "dry x3"),
        ("<{nothing}>", "<>"),
        ("<{missing?}> <{name?}>", "<> <Ada>"),
        ("{}, {a b}, {1}, {other:tone}, {app:x y}", "{}, {a b}, {1}, {other:tone}, {app:x y}"),
        ('JSON: {"a": {"b": 1}}', 'JSON: {"a": {"b": 1}}'),
        ("${name} \\{name} ${{ name }} \\{{name}}", "${name} \\{name} ${{ name }} \\{{name}}"),
        ("$ {name} \\ {name} $${name}", "$ Ada \\ Ada $${name}"),
        ("enum F {{ CREATED }} {{missing?}}|{{artifact.gone}}", "enum F {{ CREATED }} |{{artifact.gone}}"),
        ("{{{name}}} {{{missing}}}", "Ada {{{missing}}}"),
    ],
)
def test_placeholders(template: str, expected: str) -> None:
    assert resolve_instruction(template, STATE) == expected


@pytest.mark.parametrize("key", ["missing", "temp:missing"])
def test_a_missing_key_is_named_with_the_remedy(key: str) -> None:
    with pytest.raises(ModelError, match=rf"state key '{key}'.*write {{{key}\?}}.*or \${{{key}}}") as caught:
        resolve_instruction(f"{{{key}}}", STATE)
    assert not caught.value.retryable


def test_placeholders_of_artifacts() -> None:
    template = "{artifact.notes.txt}, {artifact.gone?}; {{ artifact.user:a b.md }} {artifact.notes.txt?}"
    assert artifact_names(template) == ["notes.txt", "gone", "user:a b.md"]
    texts = {"notes.txt": "{tone}", "user:a b.md": "B"}
    assert resolve_instruction(template, STATE, texts) == "{tone}, ; B {tone}"


def test_a_missing_artifact_is_named_with_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"artifact 'notes.txt', which does not.*notes.txt\?}") as caught:
        resolve_instruction("{artifact.notes.txt}", STATE)
    assert not caught.value.retryable


def test_the_keys_that_an_instruction_needs() -> None:
    template = "{a} {a} {user:b} {c?} {artifact.d} {{e}} ${f} \\{g} {h i} {other:j}"
    assert required_keys(template) == ["a", "user:b"]
