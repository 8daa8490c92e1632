"""The models that are made: layers (the first is dense), experts, top-k, width."""

VOCABULARY = 211
TINY = (5, 16, 4, 64)
COST = (25, 64, 8, 128)  # as many routers as a real model has
