"""Options that hold several values with commas between."""

__all__ = ["parse_floats", "parse_names", "parse_numbers"]


def parse_names(text: str) -> tuple[str, ...]:
    """Empty for an empty text, or one of commas and spaces alone."""
    return tuple(part.strip() for part in text.split(",")) if text.strip(" ,") else ()


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """ValueError, naming the option, for what is no number."""
    try:
        return tuple(int(part) for part in parse_names(text))
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a list of integers with commas between") from None


def parse_floats(name: str, text: str) -> tuple[float, ...]:
    """ValueError, naming the option, for what is no number."""
    try:
        return tuple(float(part) for part in parse_names(text))
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a list of numbers with commas between") from None
