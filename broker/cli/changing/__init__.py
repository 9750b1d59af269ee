"""Commands that write, judge, compare and change the broker's configuration."""
