"""A host's part in a run, from the warden's start to the end of the last process."""
