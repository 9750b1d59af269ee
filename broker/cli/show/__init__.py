"""Commands that show what a broker knows: they read its socket, and change nothing."""
