"""The group of all commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from perdure.cli.api import api
from perdure.cli.api_keys import api_keys
from perdure.cli.artifacts import artifacts
from perdure.cli.check import check
from perdure.cli.dev.command import dev
from perdure.cli.doctor import doctor
from perdure.cli.encryption import codec, keys
from perdure.cli.execute import execute
from perdure.cli.exits import ExitCode
from perdure.cli.explain import explain
from perdure.cli.help.presets import read_presets
from perdure.cli.listings import effects, events, pending, sessions
from perdure.cli.new.command import new
from perdure.cli.notify import notify
from perdure.cli.output import say, show_refusal
from perdure.cli.plans import plan
from perdure.cli.prove import prove
from perdure.cli.replays import replay
from perdure.cli.sessions import apps, session
from perdure.cli.transfers import export, import_
from perdure.cli.turns.respond import respond
from perdure.cli.turns.resume import resume
from perdure.cli.turns.run import run, stop
from perdure.cli.worker import worker
from perdure.errors import ConnectionFailed, PerdureError, page_of
from perdure.plan.only_shown import only_show


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PERDURE"})
@click.version_option(package_name="perdure", allow_from_autoenv=False)
@click.pass_context
def main(context: click.Context) -> None:
    """Run agents as Temporal workflows: they wait for days, and any process may die.

    Start with `perdure new NAME`, which makes a folder with an agent that runs; then `perdure dev NAME` in one terminal
    and `perdure run NAME "a message"` in another. Options may stand in `perdure.toml` (docs/command-line.md).

    \b
    Exit codes:
      0    done: the invocation finished
      1    the invocation failed or is stopped, or the request was refused
      2    the invocation waits for an answer
      64   the command was given wrongly
      69   no Temporal server answers
      130  Ctrl-C; what runs in Temporal runs on
    """
    context.default_map = read_presets(main)
    if context.obj is _OWN_PROCESS and context.invoked_subcommand in {command.name for command in _LIGHT}:
        only_show()


_TURNS = (run, respond, resume, stop)
_VIEWS = (events, effects, sessions, session, pending, explain, apps)
_FILES = (artifacts, export, import_, plan, replay, prove)
_LIGHT = (*_TURNS, *_VIEWS, export)
_COMMANDS = (new, dev, worker, api, execute, check, doctor, *_TURNS, *_VIEWS, *_FILES, keys, api_keys, codec, notify)
for _command in _COMMANDS:
    main.add_command(_command)


_OWN_PROCESS = object()


def run_command(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run one command; errors that Perdure raises on purpose are printed to standard error.

    Args:
        arguments: What stands behind `perdure` on the command line.
        own_process: This process runs nothing else of Perdure, before or after, so it may load less.

    Returns:
        The exit code.
    """
    stdout = sys.stdout
    try:
        code: object = main.main(
            list(arguments), prog_name="perdure", standalone_mode=False, obj=_OWN_PROCESS if own_process else None
        )
    except click.UsageError as error:
        show_refusal(error)
        return ExitCode.USAGE
    except click.ClickException as error:
        show_refusal(error)
        return ExitCode.FAILED
    except PerdureError as error:
        say(f"perdure: {error}", err=True, lines=True)
        say(f"  see {page_of(error)}", err=True)
        return ExitCode.NO_SERVER if isinstance(error, ConnectionFailed) else ExitCode.FAILED
    except (KeyboardInterrupt, click.Abort):
        say("perdure: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except SystemExit as end:
        # So click ends after shell completion, and after a broken pipe, when it also puts a mute stream in the place of
        # the broken one; imported code may do so too.
        if sys.stdout is not stdout:
            return ExitCode.BROKEN_PIPE
        code = end.code if end.code is not None else ExitCode.FINISHED
        return code if isinstance(code, int) else ExitCode.FAILED
    return code if isinstance(code, int) else ExitCode.FINISHED
