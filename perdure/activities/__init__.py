"""Activities: all I/O that workflows need, done in the worker."""
