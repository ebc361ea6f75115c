"""The dashboard of a run: its panes and what they show."""
