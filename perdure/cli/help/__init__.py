"""Options of commands that have more than fit a screen: how their help is laid out, and the file that gives them."""
