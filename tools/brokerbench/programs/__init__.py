"""The load: programs that run in the hosts of the lab and end when their standard input does."""
