"""The load of hosts: its source, and its drawing for all screens."""
