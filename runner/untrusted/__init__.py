"""From a stranger's bytes to bounded values: JSON lines, records of the protocol, single values."""
