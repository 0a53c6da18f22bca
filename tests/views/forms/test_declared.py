"""What a text answers, given the type of an answer: the commands and the conversation in a terminal take the same."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from perdure.journal.open_calls import PendingCall
from perdure.views.forms.declared import example_answer, given_answer
from perdure.views.forms.schema_check import problem_of


class Size(enum.Enum):
    S = "small"
    L = "large"


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")

    street: str
    floor: int | None = None


class Order(BaseModel):
    approved: bool
    count: int = Field(ge=1, le=10)
    price: float | None = None
    size: Size = Size.S
    code: str = Field("ABC", pattern="^[A-Z]{3}$", max_length=3)
    address: Address | None = None
    tags: list[Literal["hot", "cold"]] = Field(default_factory=list[Literal["hot", "cold"]], max_length=2)


class Trip(TypedDict):
    city: str
    nights: NotRequired[int]


class Tree(BaseModel):
    name: str
    below: list[Tree] = Field(default_factory=list["Tree"])


TYPES: list[Any] = [
    *(
        bool,
        int,
        float,
        str,
        int | None,
        list[int],
        dict[str, int],
        tuple[int, str],
        int | str,
        Order,
        Trip,
        Tree,
        Size,
    ),
    *(Literal["yes", "no"], Literal[2, 3], Annotated[int, Field(gt=3)], Annotated[float, Field(lt=-2)]),
    *(Address | Trip, Annotated[list[bool], Field(min_length=2)]),
]


def schema_of(answer: Any) -> dict[str, Any]:
    return TypeAdapter[Any](answer).json_schema()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(-4, 4)
    | st.sampled_from(["yes", "small", "ABC", "hot", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["approved", "count", "price", "size", "code", "address", "tags", "street", "floor", "city"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("answer", TYPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(value=VALUES)
@example(2.0)
@example(2.5)
def test_what_is_let_pass_is_what_pydantic_takes(answer: Any, value: Any) -> None:
    """Pydantic as it takes JSON, and strictly: it would make numbers of texts, and a journal keeps what was sent."""
    taken = TypeAdapter[Any](answer)
    try:
        taken.validate_json(TypeAdapter[Any](Any).dump_json(value), strict=True)
    except ValidationError:
        is_of_it = False
    else:
        is_of_it = True
    assert (problem_of(value, schema_of(answer)) is None) == is_of_it


@pytest.mark.parametrize("answer", TYPES, ids=str)
def test_an_example_is_of_the_type(answer: Any) -> None:
    schema = schema_of(answer)
    pending = PendingCall(
        id="c", name="adk_request_input", args={"response_schema": schema}, agent="g", invocation_id="i", since=0.0
    )
    example = example_answer(pending)
    assert problem_of(example if schema.get("type") == "object" else example.get("result", example), schema) is None


@pytest.mark.parametrize(
    ("answer", "text", "response"),
    [
        (None, '{"approved": true}', {"approved": True}),
        (None, "12", 12),
        (None, "SK 4035", "SK 4035"),
        (None, "", ""),
        (str, "12", "12"),
        (str, "true", "true"),
        (str, '"12"', "12"),
        (str, '{"result": "12"}', {"result": "12"}),
        (str, '{"name": "12"}', '{"name": "12"}'),
        (str, "[sic", "[sic"),
        (bool, "true", True),
        (bool, '{"result": true}', {"result": True}),
        (int, "12", 12),
        (int | str, "12", 12),
        (Literal["yes", "no"], "yes", "yes"),
        (Order, '{"approved": true, "count": 2}', {"approved": True, "count": 2}),
        (dict[str, int], '{"result": 1}', {"result": 1}),
    ],
)
def test_a_text_is_read_as_the_type_wants_it(answer: Any, text: str, response: Any) -> None:
    found = given_answer(text, None if answer is None else schema_of(answer))
    assert (found, type(found)) == (response, type(response))


@pytest.mark.parametrize(
    ("answer", "text", "why"),
    [
        (None, '{"approved": tru', "This is no JSON"),
        (None, "[1,", "This is no JSON"),
        (bool, "perhaps", "Give true or false."),
        (bool, '{"result": "perhaps"}', "Give true or false."),
        (int, "1.5", "Give a whole number, such as 12."),
        (Literal["yes", "no"], "maybe", "Choose one of the values."),
        (Order, "yes", 'Give an object, such as {"key": "value"}.'),
        (Order, '{"approved": true}', "Give 'count'; it is required."),
        (Order, '{"approved": 1, "count": 2}', "approved: Give true or false."),
        (Order, '{"approved": true, "count": 11}', "count: Give a number that is at most 10."),
        (Order, '{"approved": true, "count": 1, "tags": ["hot", "warm"]}', "tags: item 2: Choose one of the values."),
        (Order, '{"approved": true, "count": 1, "address": {}}', "address: Give 'street'; it is required."),
        (Address, '{"street": "a", "flor": 1}', "'flor' is none of its fields: street, floor."),
        (Address | Trip, "{}", "Give a value of one of its types."),
    ],
)
def test_a_text_that_does_not_fit_says_what_to_give(answer: Any, text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        given_answer(text, None if answer is None else schema_of(answer))
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}}},
        {"type": ["x"], "properties": "none", "required": 3, "enum": "none", "anyOf": {}, "minimum": "1"},
        {"type": "string", "pattern": "["},
    ],
)
def test_a_schema_that_says_nothing_takes_anything(schema: dict[str, Any]) -> None:
    """Also one that is malformed: it came with an imported plan, or from a node of a graph."""
    assert problem_of("text", schema) is None
    pending = PendingCall(
        id="c", name="adk_request_input", args={"response_schema": schema}, agent="g", invocation_id="i", since=0.0
    )
    assert example_answer(pending) == {"result": "…"}
