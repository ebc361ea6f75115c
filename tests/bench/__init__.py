"""Benchmarks: ratios against the same job started by hand, measured beside each other in one run."""
