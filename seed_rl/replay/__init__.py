"""Prioritized replay of unrolls, in numpy alone."""
