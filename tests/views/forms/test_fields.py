"""Which fields a form asks for, given the type of an answer, and what it makes of what was filled in."""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from perdure.agents import LongRunningFunctionTool
from perdure.errors import DefinitionError
from perdure.views.forms.declared import read_json
from perdure.views.forms.fields import Form, NotFilledIn, form_of


class Address(BaseModel):
    street: str
    floor: int | None = None


class Size(enum.Enum):
    S = "small"
    L = "large"


class Order(BaseModel):
    approved: bool
    count: int = Field(ge=1, le=10)
    price: float | None = None
    size: Size = Size.S
    note: str = Field("", description="For the cook.")
    code: str = Field(pattern="^[A-Z]{3}$", max_length=3, min_length=3)
    address: Address | None = None
    tags: list[str] = Field(default_factory=list)


def form(answer: Any) -> Form:
    found = form_of(TypeAdapter[Any](answer).json_schema())
    assert found is not None
    return found


def keys(found: Form) -> dict[str, str]:
    """Return the forms' names by those of the properties."""
    inner = [(one, "") for one in found.fields] + [(deep, f"{one.name}.") for one in found.fields for deep in one.inner]
    return {f"{prefix}{one.name}": one.key for one, prefix in inner}


def filled(found: Form, **values: str) -> dict[str, str]:
    named = keys(found)
    return {named[name.replace("__", ".")]: value for name, value in values.items()}


def errors(found: Form, **values: str) -> dict[str, str]:
    with pytest.raises(NotFilledIn) as caught:
        found.read(filled(found, **values))
    names = {key: name for name, key in keys(found).items()}
    return {names[key]: text for key, text in caught.value.errors.items()}


def test_each_type_has_its_kind_of_field() -> None:
    kinds = {one.name: one.kind for one in form(Order).fields}
    assert kinds == {
        "approved": "boolean",
        "count": "integer",
        "price": "number",
        "size": "choice",
        "note": "long text",
        "code": "text",
        "address": "group",
        "tags": "json",
    }
    address = form(Order).fields[6]
    assert [(one.name, one.kind, one.required) for one in address.inner] == [
        ("street", "long text", True),
        ("floor", "integer", False),
    ]
    assert address.label == "Address"
    assert form(Order).fields[4].help == "For the cook."
    assert form(Order).fields[3].choices == (('"small"', "small"), ('"large"', "large"))
    assert form(Order).fields[3].default == '"small"'


def test_an_answer_has_the_declared_types_and_leaves_out_what_is_empty() -> None:
    found = form(Order)
    least = filled(found, approved="false", count=" 2 ", code="ABC")
    assert found.read(least) == {"approved": False, "count": 2, "code": "ABC"}
    most = filled(
        found,
        approved="true",
        count="10",
        price="2.5",
        size='"large"',
        note="Hot.\r\nVery.",
        code="XYZ",
        address__street="Main St",
        address__floor="3",
        tags='["a"]',
    )
    assert Order.model_validate(found.read(most)).model_dump(mode="json") == found.read(most)
    assert found.read(most)["note"] == "Hot.\nVery."


def test_what_is_wrong_is_said_at_the_field() -> None:
    found = form(Order)
    assert set(errors(found)) == {"approved", "count", "code"}
    told = errors(
        found,
        approved="maybe",
        count="11",
        price="much",
        size='"huge"',
        code="abc",
        address__floor="1",
        tags="{}",
    )
    assert told == {
        "approved": "Choose yes or no.",
        "count": "Give a number that is at most 10.",
        "price": "Give a number, such as 12.5.",
        "size": "Choose one of the values.",
        "code": "It does not have the form ^[A-Z]{3}$.",
        "address.street": "Give a value; it is required.",
        "tags": "Give a list, such as [1, 2].",
    }
    assert errors(found, approved="true", count="1.5", code="AB")["count"] == "Give a whole number, such as 12."
    assert "3 characters at least" in errors(found, approved="true", count="1", code="AB")["code"]
    assert "finite" in errors(found, approved="true", count="1", code="ABC", price="inf")["price"]


def test_a_pattern_that_python_does_not_know_is_not_checked() -> None:
    for pattern in (r"^\p{Lu}+$", "(?<year>[0-9]{4})", "["):
        found = form_of({"type": "object", "properties": {"code": {"type": "string", "pattern": pattern}}})
        assert found is not None
        assert found.read(filled(found, code="ab")) == {"code": "ab"}


def test_an_answer_may_be_one_value() -> None:
    assert form(bool).read({"f0": "true"}) is True
    assert form(Literal["yes", "no"]).read({"f0": '"no"'}) == "no"
    assert form(int).read({"f0": "7"}) == 7
    assert form(int | None).read({"f0": ""}) is None
    with pytest.raises(NotFilledIn):
        form(int).read({})


def test_a_required_field_that_takes_null_may_be_empty() -> None:
    class Answer(BaseModel):
        count: int | None

    assert form(Answer).read({}) == {"count": None}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "array"},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": ["string", "null"]},
        {"$ref": "#/nowhere"},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(61)}},
        {"type": "object", "properties": "none"},
    ],
)
def test_what_fields_cannot_hold_is_asked_for_as_json(schema: dict[str, Any] | None) -> None:
    assert form_of(schema) is None


def test_objects_below_the_first_level_are_asked_for_as_json() -> None:
    class Inner(BaseModel):
        address: Address

    class Outer(BaseModel):
        inner: Inner

    assert [one.kind for one in form(Outer).fields[0].inner] == ["json"]


def test_a_type_that_refers_to_itself_ends() -> None:
    schema: dict[str, Any] = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert form_of(schema) is None


@pytest.mark.parametrize("text", ["", "yes", "{", "NaN", '"\\ud800"', "[1,]"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="This is no JSON"):
        read_json(text)


def ask(question: str) -> None:
    """Ask."""


def test_a_tool_says_of_what_type_its_answer_is() -> None:
    plan = LongRunningFunctionTool(ask, response=Order).plan()
    assert plan.response_schema == Order.model_json_schema()
    assert LongRunningFunctionTool(ask).plan().response_schema is None


def test_a_tool_without_a_declared_answer_has_the_plan_that_it_had() -> None:
    """Plans are pinned by their digest, so a new field may not change old ones."""
    assert "response_schema" not in LongRunningFunctionTool(ask).plan().model_dump_json(exclude_none=True)


def test_a_type_without_a_json_schema_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"tool 'ask': response is .*Odd, which has no JSON schema"):
        LongRunningFunctionTool(ask, response=type("Odd", (), {}))
