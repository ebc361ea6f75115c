"""A run seen from the viewing side: start, mirror, fold, print."""
