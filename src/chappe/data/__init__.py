"""Values that chappe carries, and their forms."""
