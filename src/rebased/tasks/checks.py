"""Checks of what tasks are asked for."""

__all__ = ["check_examples", "check_pairs", "check_vocabulary"]


def check_examples(num_examples: int, first_example: int, seed: int) -> None:
    for name, value, least in (
        ("num_examples", num_examples, 1),
        ("first_example", first_example, 0),
        ("seed", seed, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}; it must be an integer")
        if not least <= value < 2**63:
            raise ValueError(f"{name}={value} must be at least {least} and less than 2**63")


def check_pairs(num_pairs: int, seq_len: int, needed: int) -> None:
    """``needed``: the tokens that so many pairs take at least."""
    if isinstance(num_pairs, bool) or not isinstance(num_pairs, int):
        raise TypeError(f"num_pairs is {num_pairs!r}; it must be an integer")
    if num_pairs < 1:
        raise ValueError(f"num_pairs={num_pairs} must be positive")
    if seq_len < needed:
        raise ValueError(f"num_pairs={num_pairs} needs seq_len >= {needed}, got {seq_len}")


def check_vocabulary(vocab_size: int, seq_len: int) -> None:
    if vocab_size <= seq_len:
        raise ValueError(f"vocab_size={vocab_size} must be greater than seq_len={seq_len}")
