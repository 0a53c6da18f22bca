"""What docs/encryption.md takes for granted."""

from pathlib import Path as Path

from perdure import ConnectionConfig as ConnectionConfig
