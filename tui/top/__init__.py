"""What hosts are doing: the feed, its history, and the panes that the screen `top` is made of."""
