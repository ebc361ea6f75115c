"""Charts of a run's numbers."""
