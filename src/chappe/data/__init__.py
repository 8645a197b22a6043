"""What is carried: topics, addresses, clocks."""
