"""What a host has: everything that a launch depends on, read once, each part within its own time limit."""
