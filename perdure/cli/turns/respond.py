"""`respond`: answers open calls, after a look at the types that they declare."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.artifacts import credentials_option, open_credentials
from perdure.cli.options import Connection, SessionName, connection_options, json_option, session_options, split_pairs
from perdure.cli.streaming import stream_options
from perdure.cli.turns.following import follow_to_end, plan_for_answers, streams_of
from perdure.errors import CallNotFound
from perdure.messages.keys import SessionKey

if TYPE_CHECKING:
    from perdure.client import Runner
    from perdure.journal.open_calls import PendingCall

_PAIR = "CALL_ID=RESPONSE"


@click.command()
@session_options(required=False)
@click.argument("answers", nargs=-1, metavar="[CALL_ID=RESPONSE]...")
@click.option("--approve", multiple=True, metavar="CALL_ID", help="Let the tool run that waits for it; repeatable.")
@click.option("--reject", multiple=True, metavar="CALL_ID", help="Do not let it run; repeatable.")
@click.option("--why", metavar="TEXT", help="Why; it is kept with the answer's event, for people.")
@click.option("--unchecked", is_flag=True, help="Send answers that are not of the types that their calls declare, too.")
@click.option("--request-id", help="A second answer with the same id counts once, and follows the first one.")
@click.option("--no-wait", is_flag=True, help="Hand the answer in, and do not follow what comes of it.")
@stream_options
@json_option
@credentials_option
@connection_options
def respond(
    name: SessionName,
    answers: tuple[str, ...],
    approve: tuple[str, ...],
    reject: tuple[str, ...],
    why: str | None,
    unchecked: bool,
    request_id: str | None,
    no_wait: bool,
    stream: bool,
    stream_from: tuple[str, ...],
    as_json: bool,
    credentials: str | None,
    connection: Connection,
) -> int:
    """Answer open calls of APP, and print the events until the invocation ends or waits again.

    A RESPONSE is JSON, a text, or @FILE, the content of a file (@- is standard input). What is no JSON object arrives
    as `{"result": RESPONSE}`. One that is not of the type that its call declares is not sent. Several answers are taken
    together or not at all. Without --session the call is looked for in all sessions of the user.

    \b
    Examples:
      perdure respond travel adk-1f0c='{"flight": "SK 4035"}'
      perdure respond travel adk-1f0c=@answer.json
      perdure respond travel --approve adk-77aa --why "within the budget" --no-wait
    """
    texts = _texts(answers)
    decisions = dict.fromkeys(approve, True) | dict.fromkeys(reject, False)
    if len(decisions) + len(texts) < len(answers) + len(approve) + len(reject) or texts.keys() & decisions:
        raise click.UsageError("a call is named twice; the first answer wins, so it must be one")
    if not texts and not decisions:
        raise click.UsageError("give CALL_ID=RESPONSE, --approve CALL_ID or --reject CALL_ID")

    async def answer() -> int:
        from perdure.client import Runner
        from perdure.journal.attribution import attribution
        from perdure.rules.intake import decision

        async with streams_of(connection, stream_from, on=stream) as streams:
            kept = open_credentials(credentials)
            runner = await Runner.connect(name.app, connection.config(), streams=streams, credentials=kept)
            key = name.key() if name.session else await _find_session(runner, name, {**texts, **decisions})
            waiting = [call for _, call in await runner.pending(**key.arguments)]
            responses = await _checked(runner, key, waiting, texts, unchecked=unchecked)
            responses |= {id: decision(waiting, id, approve=how) for id, how in decisions.items()}
            runner.expect_tokens(**key.arguments)
            result = await runner.respond(
                **key.arguments,
                responses=responses,
                request_id=request_id,
                metadata=attribution(None, why, datetime.now(UTC)),
            )
            return await follow_to_end(runner, key, result, connection, as_json=as_json, wait=not no_wait)

    return asyncio.run(answer())


def _texts(answers: Sequence[str]) -> dict[str, str]:
    """Return the responses by call id, those of files read.

    Raises:
        click.BadParameter: One is no pair, a call is named twice, or a file cannot be read.
    """
    return {call: read_text(text) for call, text in split_pairs(answers, _PAIR).items()}


def read_text(text: str) -> str:
    """Return a response as it was given, or the content of the file that it names: `@file`, `@-` for standard input.

    Raises:
        click.BadParameter: The file cannot be read.
    """
    if not text.startswith("@"):
        return text
    name = text.removeprefix("@")
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        problem = f"file {name!r} cannot be read: {why}; a text that begins with @ is given as JSON, in quotes"
        raise click.BadParameter(problem, param_hint=_PAIR) from error


async def _checked(
    runner: Runner, key: SessionKey, waiting: Sequence[PendingCall], texts: Mapping[str, str], *, unchecked: bool
) -> dict[str, Any]:
    """Return the responses of texts, each of the type that its call declares; an unknown call the session refuses.

    Raises:
        click.BadParameter: One is of another type, or begins like JSON and is none.
    """
    from perdure.views.forms.declared import answer_schema, example_answer, given_answer

    calls = {call.id: call for call in waiting if call.id in texts}
    found: dict[str, Any] = {}
    for id, text in texts.items():
        call = calls.get(id)
        plan = await plan_for_answers(runner, key, [call]) if call is not None and not unchecked else None
        schema = answer_schema(call, plan) if call is not None and not unchecked else None
        try:
            found[id] = given_answer(text, schema)
        except ValueError as error:
            if call is None or schema is None:
                raise click.BadParameter(f"{text!r} looks like JSON, but is none: {error}", param_hint=_PAIR) from error
            example = json.dumps(example_answer(call, plan), ensure_ascii=False)
            raise click.BadParameter(
                f"the answer to {call.name!r} ({id}) is not of the type that it declares: {error} An answer is such as"
                f" {example}; --unchecked sends another one",
                param_hint=_PAIR,
            ) from error
    return found


async def _find_session(runner: Runner, name: SessionName, responses: Mapping[str, Any]) -> SessionKey:
    """Return the user's session that has one of the calls open."""
    for session, call in await runner.pending(user_id=name.user):
        if call.id in responses:
            return session.key
    raise CallNotFound(
        f"no session of user {name.user!r} waits for {' or '.join(map(repr, responses))}; `perdure pending {name.app}` "
        "lists what waits; with --session you learn what became of the call"
    )
