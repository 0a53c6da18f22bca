"""`perdure dev`: a front process with the terminal, the ports and Temporal, and one that serves the apps' code.

With a change of the code another one takes its place: it has loaded the new code before the old one is told to end.
What the code needs of Perdure and google.adk is loaded once, in a process that each of them is forked from.
"""
