"""Serves a viewer: requests, streams and the mirror, over one channel."""
