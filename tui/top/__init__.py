"""The screen `top`: the live load of hosts, and its panes."""
