"""What runs the cores: the only threads and clocks."""
