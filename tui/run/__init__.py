"""A run as screens see it: snapshots, histories, events, ranks."""
