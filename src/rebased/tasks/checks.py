"""Checks of what tasks are asked for."""

from rebased.checks import check_integer

__all__ = ["check_examples", "check_pairs", "check_vocabulary"]


def check_examples(num_examples: int, first_example: int, seed: int) -> None:
    for name, value, least in (
        ("num_examples", num_examples, 1),
        ("first_example", first_example, 0),
        ("seed", seed, 0),
    ):
        check_integer(name, value, least=least)
        if value >= 2**63:
            raise ValueError(f"{name}={value} must be less than 2**63")


def check_pairs(num_pairs: int, seq_len: int, needed: int) -> None:
    """``needed``: the tokens that so many pairs take at least."""
    check_integer("num_pairs", num_pairs)
    if seq_len < needed:
        raise ValueError(f"num_pairs={num_pairs} needs seq_len >= {needed}, got {seq_len}")


def check_vocabulary(vocab_size: int, seq_len: int) -> None:
    if vocab_size <= seq_len:
        raise ValueError(f"vocab_size={vocab_size} must be greater than seq_len={seq_len}")
