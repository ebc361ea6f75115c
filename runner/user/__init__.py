"""The user's own settings: the config, folders, notifications of the terminal, the editor."""
