"""How the help of commands is laid out that have more options than fit a screen."""
