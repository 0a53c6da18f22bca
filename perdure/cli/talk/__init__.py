"""`perdure run APP` without a message: a conversation in the terminal, or the lines of a pipe as messages."""
