"""Commands that need no running job: preflight, rehearsal, planner. None of them imports the engine."""
