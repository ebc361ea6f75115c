"""What is the user's own: the config, folders, the terminal's notices, the editor."""
