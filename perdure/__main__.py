"""`perdure` and `python -m perdure`."""

from __future__ import annotations

import sys
import traceback
from typing import NoReturn

from perdure.cli import leave, run_command
from perdure.escapes import escaped


def entry_point() -> NoReturn:
    """Run the command of this process's command line, and end the process."""
    try:
        code = run_command(sys.argv[1:], own_process=True)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        # Not one of Perdure's own errors: show all of it, and still end in the way that cannot abort.
        sys.stderr.write(escaped(traceback.format_exc(), lines=True))
        code = 1
    leave(code)


if __name__ == "__main__":
    entry_point()
