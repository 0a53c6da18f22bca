"""`perdure exec`: runs a program that builds a `Runner` of google.adk's, durably and unchanged."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module's name, as for `python -m`.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def execute(program: str, args: tuple[str, ...], *, module: bool) -> None:
    """Run a program that builds google.adk's Runner, with its runs made durable (extra `adk`).

    The program stays as it is: what it imports as Runner or InMemoryRunner of google.adk runs its agents by Temporal,
    with a worker in the program itself. What was under way as it died goes on when it is started again. Temporal is
    where TEMPORAL_ADDRESS says, or on this machine, where a development server is started if none answers.

    \b
    Examples:
      perdure exec main.py
      perdure exec -m shop.main --verbose
    """
    if not module and not Path(program).is_file():
        raise click.UsageError(f"there is no file {program!r}")
    try:
        from perdure.programs.execute import execute as run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        message = "google-adk is not installed; install the extra: pip install 'perdure[adk]'"
        raise click.ClickException(message) from error
    run(program, args, module=module)
