"""Agreement of named servers by majority."""
