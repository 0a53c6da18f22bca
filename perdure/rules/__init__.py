"""What a session takes and refuses, and what becomes of answers: the semantics as functions. Pure."""
