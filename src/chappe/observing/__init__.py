"""What an observer knows of a running system: one snapshot contract, what merges looks into it, and how it is drawn.

No I/O. ``snapshot`` is the contract; ``observer`` merges what sources saw; ``health`` says what is wrong and what to
do; ``lines`` keeps the last minutes of rates and lags; ``drawing`` gives every member a place that it keeps.
"""
