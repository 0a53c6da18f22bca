"""What docs/prove.md takes for granted."""

from pathlib import Path as Path

from perdure.testing import Perdure as Perdure
