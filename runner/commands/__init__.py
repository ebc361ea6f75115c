"""The commands on runs: each takes what was asked for through the stages and returns what is to be printed."""
