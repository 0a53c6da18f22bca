"""What the fragments of a page take for granted: a module for each page that has fragments."""
