"""All that exists because of how Temporal's SDK and server behave."""
