"""The command line. Each command parses, makes one call to the rest of Perdure, and prints.

Only what parsing needs is imported here; the rest is imported inside the commands. Those that look at sessions, and
move them, do without google-genai, which takes a second of processor (`perdure/plan/only_shown.py`); those that look
at an app do without its clients (`perdure/compiler/without_clients.py`).
"""

from perdure.cli.exits import leave
from perdure.cli.main import run_command

__all__ = ["leave", "run_command"]
