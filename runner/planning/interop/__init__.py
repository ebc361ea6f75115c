"""Files of other launchers → a profile, and a profile → files of other launchers. Pure translation, no I/O."""
