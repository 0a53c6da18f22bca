"""Tells people outside of Perdure what waits for them and what has failed: by a webhook, and by e-mail."""
