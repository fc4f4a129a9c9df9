"""What was run: profiles, the store of runs, experiments."""

# Raised whenever the same inputs would give other numbers: it is part of every table's identity.
RECIPE = 1
