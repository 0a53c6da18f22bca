"""Temporal's `RetryPolicy` as a field of a definition, which loads Temporal's SDK only where there is one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PlainValidator

__all__ = ["RetryPolicy"]


def _policy(value: Any) -> Any:
    # Who has a policy has loaded its module.
    common = sys.modules.get("temporalio.common")
    if common is None or not isinstance(value, common.RetryPolicy):
        raise ValueError("give a RetryPolicy of temporalio.common")
    return value


if TYPE_CHECKING:
    from temporalio.common import RetryPolicy
else:
    RetryPolicy = Annotated[Any, PlainValidator(_policy)]
