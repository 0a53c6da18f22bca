"""`explain`: shows what a session or an invocation awaits, why it does not go on, and what a resume would do."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from perdure.cli.exits import ExitCode
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options
from perdure.cli.output import age, answer_lines, call_text, clock, say, session_flags, show_json
from perdure.cli.plans import note_other_code
from perdure.errors import InvocationNotFound, SessionNotFound

if TYPE_CHECKING:
    from perdure.client import Runner
    from perdure.views.explanation import Awaited, InvocationExplanation, RaisedStep, ResumeOutlook, SessionExplanation
    from perdure.views.next_steps import AgentStep

_TAKES = {
    "value": "a value: any JSON, which becomes the tool's response",
    "decision": "a decision: approve or reject",
    "credential": "a credential, in ADK's auth config as exchangedAuthCredential",
    "verdict": "a verdict: whether the call took effect, or that it may run again",
}


@click.command()
@session_options(required=False)
@click.argument("id", required=False, metavar="[SESSION|INVOCATION]")
@json_option
@connection_options
def explain(name: SessionName, id: str | None, as_json: bool, connection: Connection) -> int:
    """Say what a session of APP, or an invocation, awaits, and what a resume would do. Nothing is done.

    It tells each open call (tool, arguments, agent, since when, deadline) and what kind of answer it takes, failures
    with their cause and where in your code that was raised, where each agent stands, which tool results are kept, and
    which step runs next. Of a session, it tells of the invocations that are not finished, or of the newest. An
    INVOCATION is looked for in all sessions of the user, unless --session names one. No worker has to be up.

    \b
    Examples:
      perdure explain travel trip-1
      perdure explain travel e-5f1c… --user ada
      perdure explain travel --session trip-1 e-5f1c… --json
    """
    if id is None and name.session is None:
        raise click.UsageError("name a session or an invocation")

    async def look() -> int:
        from perdure.client import Runner
        from perdure.config import connect
        from perdure.recovery.raised_steps import with_raised_steps

        client = await connect(connection.config())
        await note_other_code(client, name.app)
        runner = Runner(name.app, client)
        found = await with_raised_steps(client, await _explain(runner, name, id))
        if as_json:
            show_json(found)
        else:
            flags = session_flags(found.key) + connection.flags
            for line in _describe(found, flags):
                say(line)
        return ExitCode.FINISHED

    return asyncio.run(look())


async def _explain(runner: Runner, name: SessionName, id: str | None) -> SessionExplanation:
    if name.session is not None:
        return await runner.explain(**name.key().arguments, invocation_id=id)
    wanted = id or ""
    try:
        return await runner.explain(**name.key(wanted).arguments)
    except SessionNotFound:
        session = await _session_of(runner, name, wanted)
    return await runner.explain(**name.key(session).arguments, invocation_id=wanted)


async def _session_of(runner: Runner, name: SessionName, invocation_id: str) -> str:
    """Return the id of the user's session that has an invocation."""
    for session in await runner.list_sessions(user_id=name.user):
        try:
            await runner.invocation(**session.key.arguments, invocation_id=invocation_id)
        except (InvocationNotFound, SessionNotFound):
            continue
        return session.id
    raise SessionNotFound(
        f"user {name.user!r} of app {name.app!r} has neither a session nor an invocation {invocation_id!r};"
        f" `perdure sessions {name.app}` lists the sessions of all users"
    )


def _describe(session: SessionExplanation, flags: str) -> Iterator[str]:
    closed = f"; its workflow is {session.closed}, and the next message, answer or resume brings it back"
    yield (
        f"session {session.id} of user {session.user_id} in app {session.app_name} is {session.status}"
        + (closed if session.closed else "")
    )
    if session.halted is not None:
        yield f"it does not go on: {session.halted}"
    if not session.invocations:
        yield "it has no invocations: nobody has sent it a message"
    for invocation in session.invocations:
        yield ""
        yield from _describe_invocation(invocation, session, flags)
    if session.next is not None:
        yield ""
        yield f"{session.open_count - session.next} more have not finished; name one of them by its id"


def _describe_invocation(invocation: InvocationExplanation, session: SessionExplanation, flags: str) -> Iterator[str]:
    from perdure.rules.failures import reference

    agent = f", begun by agent {invocation.agent}" if invocation.agent else ""
    yield f"invocation {invocation.id} is {invocation.status}{agent}"
    if invocation.reason:
        yield f"  because: {invocation.reason}"
    dealt_with = "failed, and the agents went on"
    for failure in (*invocation.failures, *invocation.dealt_with):
        known = reference(invocation.id, failure.agent, failure.step)
        what = "failed" if failure in invocation.failures else dealt_with
        yield f"  {what}: agent {failure.agent!r} in {failure.step!r}: {failure.cause} (reference {known})"
        yield from _describe_raised(one for one in session.raised if one.is_of(invocation.id, failure))
    for step in session.raised:
        if step.next_attempt is not None and step.invocation_id == invocation.id:
            yield f"  is tried again: agent {step.agent!r} in {step.step!r}, attempt {step.next_attempt}, after:"
            yield from _describe_raised([step])
    if invocation.behind:
        more = invocation.behind_count - len(invocation.behind)
        yield f"  its turn comes after: {', '.join(invocation.behind)}" + (f" and {more} more" if more else "")
    for awaited in invocation.awaits:
        yield from _describe_awaited(awaited, flags)
    yield from _describe_resume(invocation, flags)


def _describe_raised(steps: Iterable[RaisedStep]) -> Iterator[str]:
    """Yield where the newest of some attempts was raised."""
    for step in list(steps)[:1]:
        yield from (f"    {line}" for line in step.trace.splitlines())


def _describe_awaited(awaited: Awaited, flags: str) -> Iterator[str]:
    call = awaited.call
    yield f"  awaits {call_text(call)} of agent {call.agent}"
    yield f"    since {clock(call.since)} UTC ({age(call.since)}), deadline {clock(call.deadline)}"
    yield f"    takes {_TAKES[awaited.takes]}; from {awaited.who}"
    yield from (f"    {line}" for line in answer_lines(flags, call, awaited.example))


def _describe_resume(invocation: InvocationExplanation, flags: str) -> Iterator[str]:
    resume = invocation.resume
    what = {"runs on": "would run it on", "nothing": "would do nothing", "refused": "would be refused"}[resume.verdict]
    yield f"  a resume {what}: {resume.why}"
    if resume.step is not None:
        yield from _describe_step(resume.step, "    ")
    yield from _describe_kept(resume)
    if resume.verdict == "runs on":
        yield f"  resume it:  perdure resume {flags} {shlex.quote(invocation.id)}"


_MARKS = {"done": "[x]", "has begun": "[~]", "waits": "[?]", "not reached": "[ ]"}


def _describe_step(step: AgentStep, indent: str) -> Iterator[str]:
    branch = f" (branch {step.branch})" if step.branch else ""
    yield f"{indent}{step.agent}{branch}: {step.words}"
    if step.done:
        yield f"{indent}  not entered again, since they have ended: {', '.join(step.done)}"
    for node in step.graph:
        times = f" ({node.runs} times)" if node.runs > 1 else ""
        leads = f"  -> {', '.join(node.leads_to)}" if node.leads_to else ""
        yield f"{indent}  {_MARKS[node.standing]} {node.path}: {node.standing}{times}{leads}"
    for call in step.calls:
        attempts = f" ({call.attempts} attempts so far)" if call.attempts and call.next == "runs" else ""
        yield f"{indent}  {call.tool} {call.id}: {call.next}{attempts}"
    for below in step.below:
        yield from _describe_step(below, f"{indent}  ")


def _describe_kept(resume: ResumeOutlook) -> Iterator[str]:
    if resume.kept:
        yield "    kept, and not run again: " + ", ".join(f"{kept.tool} {kept.call_id}" for kept in resume.kept)
    if resume.answers:
        yield f"    answers that are accepted already: {', '.join(resume.answers)}"
