"""How models are trained: recall models, many of one shape at once, and language models, one at a time."""
