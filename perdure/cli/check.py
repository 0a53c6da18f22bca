"""`check`: says before anything runs what of an app is durable, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import json_option
from perdure.cli.output import say, say_labelled, show_json
from perdure.compiler.without_clients import load_types_only

if TYPE_CHECKING:
    from perdure.compiler.check.findings import Findings, Part

_COLOURS = {"durable": "green", "coarser": "yellow", "refused": "red"}


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@json_option
def check(targets: Sequence[str], as_json: bool) -> int:
    """Say of each agent and tool how durable it is, and what would not survive a worker. Nothing is run.

    A TARGET is MODULE:APP, a .py file, an agent's folder, or a folder of such folders. What is said of a part: durable
    (each thing that it does is a recorded step), coarser (all of it is one step, done again if it is cut off), or
    refused (Perdure does not run it), with the reason and the remedy. Hazards stand below: what works in one process
    that never ends. The exit code is 1 if something is refused. With --json each app is a line.

    \b
    Examples:
      perdure check my_agents/
      perdure check travel.agent:app --json
    """
    if click.get_current_context().obj is not None:
        # The process is the command's own.
        load_types_only()
    from perdure.compiler.check.apps import check_apps

    refused = False
    for number, found in enumerate(check_apps(targets)):
        refused |= found.refused is not None
        if as_json:
            show_json(found)
            continue
        if number:
            say()
        _show(found)
    return ExitCode.FAILED if refused else ExitCode.FINISHED


def _show(found: Findings) -> None:
    parts = found.parts
    if found.refused is not None and not any(part.verdict == "refused" for part in parts):
        say_labelled("refused ", "red", found.app)
        say(f"  {found.refused}", lines=True)
        return
    say(f"{found.app}: {_summary(found)}")
    rows = [("  " * part.path.count("/") + part.name, part) for part in parts]
    width = max((len(name) for name, _ in rows), default=0)
    kinds = max((len(part.kind) for _, part in rows), default=0)
    for name, part in rows:
        say_labelled(f"  {part.verdict:<8}", _COLOURS[part.verdict], f"{name:<{width}}  {part.kind:<{kinds}}".rstrip())
        _explain(part)
    for hazard in found.hazards:
        say_labelled("  hazard  ", "yellow", f"{_near(hazard.where)}: {hazard.words}")
        say(f"            remedy: {hazard.remedy}")


def _explain(part: Part) -> None:
    if part.reason is not None:
        say(f"            {' '.join(_near(part.reason).split())}")
    if part.remedy is not None:
        say(f"            remedy: {part.remedy}")


def _summary(found: Findings) -> str:
    counts = [f"{n} {verdict}" for verdict in _COLOURS if (n := sum(p.verdict == verdict for p in found.parts))]
    if found.hazards:
        counts.append(f"{len(found.hazards)} hazard{'s' if len(found.hazards) > 1 else ''}")
    return ", ".join(counts)


def _near(text: str) -> str:
    """Return a text with the paths in it as they are from here."""
    return text.replace(f"{Path.cwd()}/", "")
