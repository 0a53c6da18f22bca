"""`LLMRegistry`: finds the provider of a model by the model's name.

A provider is one file in this package, or a user's own subclass of `BaseLlm`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm

ModelFactory = Callable[[str], BaseLlm]
"""Makes a model from its name."""


def _gemini(model: str) -> BaseLlm:
    # Imported late, so that a client or a worker without Gemini agents loads no provider.
    from perdure.models.gemini import Gemini

    return Gemini(model)


class LLMRegistry:
    """Model names and their providers, one table for the process. ADK: `models/registry.py`."""

    _factories: dict[str, ModelFactory] = {  # noqa: RUF012 - the one table that is meant to be shared
        r"gemini-.+": _gemini,
        r"model-optimizer-.+": _gemini,
        r"projects/.+/locations/.+/endpoints/.+": _gemini,
        r"projects/.+/locations/.+/publishers/google/models/gemini.+": _gemini,
    }
    _models: dict[str, BaseLlm] = {}  # noqa: RUF012

    @classmethod
    def register(cls, pattern: str, factory: ModelFactory) -> None:
        """Add a provider.

        Args:
            pattern: Regular expression that the whole name of a model must match. A pattern that is known already is
                replaced; of several that match a name, the one registered last counts.
            factory: Makes a model from its name; a subclass of `BaseLlm` that takes the name will do.

        Raises:
            DefinitionError: The pattern is no regular expression.
        """
        try:
            re.compile(pattern)
        except re.error as error:
            raise DefinitionError(f"model pattern {pattern!r} is no regular expression: {error}") from error
        cls._factories.pop(pattern, None)
        cls._factories[pattern] = factory
        cls._models.clear()

    @classmethod
    def resolve(cls, model: str) -> ModelFactory:
        """Return the factory for a model's name.

        Raises:
            DefinitionError: No registered pattern matches the name.
        """
        for pattern, factory in reversed(cls._factories.items()):
            if re.fullmatch(pattern, model):
                return factory
        known = ", ".join(repr(pattern) for pattern in cls._factories)
        raise DefinitionError(
            f"no provider knows the model {model!r}; use a name that matches one of {known}, add a provider with "
            "LLMRegistry.register(pattern, factory), or give the agent a model object"
        )

    @classmethod
    def new_llm(cls, model: str) -> BaseLlm:
        """Return the model of this name, made at the first call.

        Raises:
            DefinitionError: No registered pattern matches the name.
        """
        if model not in cls._models:
            cls._models[model] = cls.resolve(model)(model)
        return cls._models[model]
