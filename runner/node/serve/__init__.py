"""The viewer's side door: requests, streams, and the mirror, over one channel."""
