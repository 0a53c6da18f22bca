"""Puts the steps of a google.adk app together for a worker."""

from __future__ import annotations

from typing import cast

from perdure.adk.registry import AdkRegistry
from perdure.adk.services import Services
from perdure.adk.steps import AdkSteps
from perdure.artifacts.service import ArtifactService
from perdure.compiler.registry import AnyRegistry
from perdure.steps.base import Steps
from perdure.steps.user_code import CodeRunner


def adk_steps(registry: AnyRegistry, code: CodeRunner, artifacts: ArtifactService | None) -> Steps:
    """Return the steps of a google.adk app's agents."""
    known = cast(AdkRegistry, registry)
    return AdkSteps(known, code, Services(known.app, artifacts))
