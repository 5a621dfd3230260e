"""The wire between actors and the learner: addresses, codec, server and client.

Import what you need from the modules themselves. Nothing here imports TensorFlow.
"""
