"""The home screen: what runs, what has run, and what can be run."""
