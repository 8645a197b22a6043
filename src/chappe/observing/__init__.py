"""Observation of a running system: one snapshot contract, the merging of looks into it, and its drawing.

No I/O. ``snapshot`` is the contract; ``observer`` merges the looks of sources; ``health`` finds problems and remedies;
``lines`` keeps the last minutes of rates and lags; ``drawing`` gives every member a place that it keeps.
"""
