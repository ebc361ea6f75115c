"""The load of hosts: where it comes from, and how it is drawn; for all screens that show it."""
