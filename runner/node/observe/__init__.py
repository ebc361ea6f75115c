"""What the ranks of one attempt do, seen from outside: their logs, metrics, memory and deaths."""
