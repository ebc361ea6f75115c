"""The texts of the command line: tables, the live view, the story of a run."""
