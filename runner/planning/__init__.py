"""Turns facts and a profile into what each host gets and runs, with a reason for each value."""
