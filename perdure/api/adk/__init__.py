"""Routes of ADK's own API."""
