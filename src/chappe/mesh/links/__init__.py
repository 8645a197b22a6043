"""The connections of an endpoint: how they begin, live and end. No I/O."""
