"""What a host has: everything that a launch depends on, asked once, each answer in its own time limit."""
