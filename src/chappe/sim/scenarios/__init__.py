"""What the simulator plays, one scenario for each feature, and mixes of them."""
