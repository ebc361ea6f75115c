"""Libraries of profiles that a team shares: lists, git repositories, and edits of two people joined by key."""
