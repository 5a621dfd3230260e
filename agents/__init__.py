"""The algorithms: one folder each, and the networks that they share."""
