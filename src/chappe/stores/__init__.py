"""Data stores: replicated key-value state with one master and any number of clones."""
