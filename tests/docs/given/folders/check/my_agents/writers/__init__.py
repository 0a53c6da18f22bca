"""An app of docs/check.md."""

from . import agent as agent
