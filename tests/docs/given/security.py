"""What docs/security.md takes for granted."""

import re

from perdure import ConnectionConfig as ConnectionConfig
from perdure import WorkerConfig as WorkerConfig

CARD_NUMBER = re.compile(r"\b\d{16}\b")
