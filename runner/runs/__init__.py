"""A run on the viewer's side: start, mirror, fold."""
