"""A host's part in a run, from the warden's start to the last process's end."""
