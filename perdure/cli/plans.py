"""`plan`: shows an app's plan, and how a session's differs from it; and a word where workers have other code."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, connection_options, json_option
from perdure.cli.output import say, show_json
from perdure.compiler.without_clients import load_types_only

if TYPE_CHECKING:
    from collections.abc import Sequence

    from temporalio.client import Client

    from perdure.messages.session import InvocationView
    from perdure.plan.nodes import Plan


@click.command()
@click.argument("target", metavar="TARGET")
@click.option("--diff", "session", metavar="SESSION", help="Compare the plans of this session's invocations with it.")
@click.option("-u", "--user", envvar="PERDURE_USER", default="user", show_default=True, help="User id; with --diff.")
@click.option("--invocation", metavar="ID", help="Only this invocation's plan; with --diff.")
@json_option
@connection_options
def plan(
    target: str, session: str | None, user: str, invocation: str | None, as_json: bool, connection: Connection
) -> int:
    """Print the plan of an app: its agents, models and tools, as invocations are pinned to it.

    A TARGET is MODULE:APP, a .py file, or a folder. With --diff SESSION it prints how the plans of the session's
    unfinished invocations, or of its newest one, differ from the code's; - and + are what was and what is. The exit
    code is 1 if one differs.

    \b
    Examples:
      perdure plan travel.agent:app
      perdure plan travel.agent:app --diff trip-1 --user ada
    """
    if click.get_current_context().obj is not None:
        # The process is the command's own.
        load_types_only()
    from perdure.compiler.loading import load_app
    from perdure.compiler.registry import register
    from perdure.plan.diff import describe_plan

    compiled = register(load_app(target)).plan
    if session is not None:
        return asyncio.run(_diff(compiled, user, session, invocation, connection, as_json=as_json))
    if invocation is not None:
        raise click.UsageError("--invocation needs --diff SESSION")
    if as_json:
        show_json({"digest": compiled.digest, "plan": compiled})
    else:
        for line in describe_plan(compiled):
            say(line)
    return ExitCode.FINISHED


async def note_other_code(client: Client, app: str) -> None:
    """Say so where the files of an app that are here are not what its workers have loaded.

    Nothing is said where no files of the app are found from the working directory, or some worker says nothing of its
    code: it is versioned, or a program's.
    """
    from temporalio.service import RPCError

    from perdure.compiler.sources import code_digest, sources_here
    from perdure.sessions.pollers import served_code

    try:
        path = sources_here(app)
        where = os.path.relpath(path) if path is not None else ""  # noqa: ASYNC240 -- asks for no file
        here = code_digest(path) if path is not None else None
        served = await served_code(client, app) if here is not None else frozenset[str]()
    except (OSError, RPCError):
        return
    if served and here not in served:
        say(
            f"perdure: {where} differs from what is served: it is not the code that the workers of app {app!r} have"
            " loaded, and what runs is theirs. `perdure dev` takes up a change as soon as it can be loaded; other"
            " workers do when they are started again",
            err=True,
        )


async def _diff(
    code: Plan, user: str, session: str, invocation: str | None, connection: Connection, *, as_json: bool
) -> int:
    from perdure.client import Runner
    from perdure.errors import InvocationNotFound

    runner = await Runner.connect(code.app, connection.config())
    view = await runner.get_session(user_id=user, session_id=session)
    chosen = _chosen(view.invocations, invocation)
    if invocation is not None and not chosen:
        raise InvocationNotFound(f"session {session!r} has no invocation {invocation!r}")
    by_plan: dict[str, list[str]] = {}
    for found in chosen:
        by_plan.setdefault(found.plan or "", []).append(found.id)
    differs = False
    for ids in by_plan.values():
        pinned = await runner.plan(user_id=user, session_id=session, invocation_id=ids[0])
        if pinned is None:
            say(f"invocation {', '.join(ids)} is pinned to no plan yet; it takes the newest", err=True)
            continue
        differs |= _show(pinned, code, ids, as_json=as_json)
    return ExitCode.FAILED if differs else ExitCode.FINISHED


def _chosen(invocations: Sequence[InvocationView], invocation: str | None) -> list[InvocationView]:
    """Return the invocation that was named, or else those that are not finished, or else the newest."""
    if invocation is not None:
        return [view for view in invocations if view.id == invocation]
    return [view for view in invocations if view.status != "finished"] or list(invocations[-1:])


def _show(pinned: Plan, code: Plan, ids: Sequence[str], *, as_json: bool) -> bool:
    """Print how a pinned plan differs from the code's; returns whether it does."""
    from perdure.plan.diff import describe_change, diff_plans

    changes = diff_plans(pinned, code)
    if as_json:
        show_json({"invocations": ids, "pinned": pinned.digest, "code": code.digest, "changes": changes})
        return bool(changes)
    verdict = "differs from" if changes else "equals"
    say(f"plan {pinned.digest[:12]} of invocation {', '.join(ids)} {verdict} the code's {code.digest[:12]}")
    for change in changes:
        for line in describe_change(change):
            say(f"  {line}")
    return bool(changes)
