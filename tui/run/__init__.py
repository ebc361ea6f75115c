"""A run as screens show it: snapshots, histories, events, ranks."""
