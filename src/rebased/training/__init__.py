"""How models are trained: many recall models of one shape at once."""
