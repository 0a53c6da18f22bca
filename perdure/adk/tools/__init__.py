"""What google.adk's tools do beside their functions: run agents, hand out tasks, ask toolsets, return anything."""
