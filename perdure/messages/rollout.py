"""The wait of a step for code that a worker lacks, while workers are replaced one by one."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict


class Rollout(BaseModel):
    """The time for which missing code is looked for elsewhere; the detail of a `NotRegistered` failure."""

    model_config = ConfigDict(frozen=True)

    attempts: int = 30
    """How often it is looked for before the step fails. Default: 30."""
    pause: timedelta = timedelta(seconds=10)
    """Between two attempts. Default: 10 s."""
