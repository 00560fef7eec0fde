"""Training of language models with `transformers.Trainer`: the paper's recipe, resumed wherever it was killed."""
