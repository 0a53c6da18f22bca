"""What an app is compiled to: a tree of plain data with a digest, pinned by each invocation."""
