"""Shared libraries of profiles: folders and git repositories, with concurrent edits merged by key."""
