"""From an app to its plan, and from names in a plan to code."""
