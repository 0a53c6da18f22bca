"""Types of what agents are asked and answer: `input_schema` and `output_schema`, told as JSON schemas and checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from google.genai import types
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from perdure.agents.declaration import declared_schema, problems_of, reason_of
from perdure.errors import DefinitionError, InvalidArguments, error_text, shortened

_FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z0-9_]*[ \t]*\n?")
_MOST_PROBLEMS = 20


class Structured:
    """A type by which JSON is told to a model, and checked when it comes back. ADK: `utils/_schema_utils.py`.

    A raw JSON schema (a `dict`, or google-genai's `Schema`) is told only: what comes back may be any JSON, as in ADK.
    """

    def __init__(self, given: Any, where: str) -> None:
        """Read a type.

        Args:
            given: A pydantic model, another type that pydantic knows, such as `list[Model]`, or a JSON schema.
            where: Whose it is, for errors: `agent 'clerk': output_schema`.

        Raises:
            DefinitionError: It has no JSON schema.
        """
        self._adapter: TypeAdapter[Any] | None = None
        try:
            if isinstance(given, types.Schema):
                self.schema = given.json_schema.model_dump(mode="json", by_alias=True, exclude_none=True)
            elif isinstance(given, dict):
                self.schema = from_json(to_json(cast("dict[str, Any]", given)))
            else:
                self.schema = declared_schema(given)
                self._adapter = TypeAdapter[Any](given)
        except Exception as error:  # A type's own hooks may raise anything.
            raise DefinitionError(
                f"{where} is {given!r}, which has no JSON schema ({reason_of(error)}); give a pydantic model, a type"
                " such as list[Model], or a JSON schema"
            ) from error

    def of_text(self, text: str) -> Any:
        """Return the value that a text holds, as JSON; fields without a value are left out, as in ADK.

        Raises:
            InvalidArguments: It is no JSON, or does not fit the type.
        """
        if self._adapter is None:
            return _checked(lambda: from_json(_unfenced(text), allow_inf_nan=False))
        adapter = self._adapter
        return _checked(lambda: _plain(adapter, adapter.validate_json(_unfenced(text))))

    def of_json(self, value: Any) -> Any:
        """Return a value that a model gave as arguments, as `of_text` does.

        Raises:
            InvalidArguments: It does not fit the type.
        """
        return self.of_text(to_json(value, inf_nan_mode="constants").decode())


def message_of_input(schema: type[BaseModel], args: Any) -> str:
    """Return arguments that fit an `input_schema` as the JSON text that an agent is told. ADK: `AgentTool`.

    Raises:
        InvalidArguments: They do not fit.
    """
    given = to_json(args, inf_nan_mode="constants", bytes_mode="base64")
    return _checked(lambda: schema.model_validate_json(given).model_dump_json(exclude_none=True))


def _plain(adapter: TypeAdapter[Any], value: Any) -> Any:
    return adapter.dump_python(value, mode="json", exclude_none=True)


def _checked(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValidationError as error:
        found = problems_of(error, _MOST_PROBLEMS)
        told = [f"{'.'.join(map(str, loc))}: {words}" if loc else words for loc, _, words in found]
        if error.error_count() > _MOST_PROBLEMS:
            told.append(f"and {error.error_count() - _MOST_PROBLEMS} more")
        raise InvalidArguments(shortened("; ".join(told))) from error
    except Exception as error:  # A type's own validator may raise anything.
        raise InvalidArguments(error_text(error)) from error


def _unfenced(text: str) -> str:
    """Return a text without the fence that models put around JSON when they should not."""
    inner = text.strip()
    if len(inner) < 2 * len(_FENCE) or not (inner.startswith(_FENCE) and inner.endswith(_FENCE)):
        return text
    return _LANGUAGE.sub("", inner[len(_FENCE) : -len(_FENCE)], count=1).strip()
