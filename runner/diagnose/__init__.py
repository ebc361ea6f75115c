"""What went wrong, or hangs, or is slow: from a run's records to sentences. Pure but for `command`."""
