"""An orchestrator that delegates to a picker, whose two long-running tools are answered one after the other."""
