"""Benchmarks: ratios against the same job started by hand, measured beside each other in one run."""

import tui as tui  # first, for it sets something up for textual
