"""The built-in training job, bytegpt: torch and the standard library only, shipped to hosts as one zip."""
