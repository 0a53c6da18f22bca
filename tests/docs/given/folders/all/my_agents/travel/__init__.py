"""An app as users of google.adk have it."""

from . import agent as agent
