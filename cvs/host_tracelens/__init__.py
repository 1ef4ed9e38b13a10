"""TraceLens, where this machine has it: run on a run's traces after cvs has measured them itself."""
