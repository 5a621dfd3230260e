"""Environments: one folder a family, found by name through `registry.load`. No TensorFlow here."""
