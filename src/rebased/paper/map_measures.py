"""What the attention maps of a recall model say: how well they meet the truth, how far they spread, how they look."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.analysis.attention_maps import attention_map
from rebased.analysis.entropy import row_entropy
from rebased.analysis.iou import intersection_and_union
from rebased.models import LanguageModel
from rebased.paper.experiment import Data
from rebased.tasks import Examples

__all__ = ["measure_maps", "show_maps", "value_positions"]

BATCH_SIZE = 128
"""Examples at a time: logits of a large vocabulary need room."""
MAP_DIGITS = 4
ROW_DIGITS = 6


def value_positions(examples: Examples, num_pairs: int) -> Int[Tensor, "N P"]:
    """Where among the pairs, the first 2·num_pairs tokens, each query's answer stands."""
    pairs = examples.inputs[:, : 2 * num_pairs]
    return (pairs[:, None, :] == examples.answers[:, :, None]).to(torch.int8).argmax(dim=2)


def measure_maps(model: LanguageModel, examples: Examples, *, num_pairs: int) -> dict[str, float]:
    """Of the last layer's map, in the rows of all queries: IoU, accuracy, attention at the value, entropy.

    IoU is ``Σ min / Σ max`` of the map and the truth, 1 at the position of the query's value, over the columns of the
    pairs and all examples together. Entropy is that of the row over all tokens up to the query, 1 if it is uniform.
    """
    intersection = union = 0.0
    right, at_value, entropies = [], [], []
    for start in range(0, len(examples), BATCH_SIZE):
        part = examples[start : start + BATCH_SIZE]
        attention, truth = _rows(model, part, num_pairs)
        in_pairs = attention[:, :, : 2 * num_pairs]
        intersections, unions = intersection_and_union(in_pairs, truth)
        intersection, union = intersection + float(intersections.sum()), union + float(unions.sum())
        at_value.append((in_pairs * truth).sum(axis=2))
        num_keys = part.positions.cpu().numpy() + 1
        entropies.append(row_entropy(attention, normalize=True, num_keys=num_keys))
        with torch.no_grad():
            predictions = model(part.inputs, at=part.positions).argmax(dim=2)
        right.append((predictions == part.answers).cpu().numpy())
    return {
        "iou": intersection / union,
        "accuracy": float(np.concatenate(right).mean()),
        "at_value": float(np.concatenate(at_value).mean()),
        "entropy": float(np.nanmean(np.concatenate(entropies))),  # a row of zeros has none
    }


def show_maps(model: LanguageModel, examples: Examples, *, num_pairs: int) -> list[Data]:
    """Each example's map, queries by position and pairs, the values' positions, and all of the last query's row."""
    attention, _ = _rows(model, examples, num_pairs)
    truth = value_positions(examples, num_pairs).tolist()
    ends = (examples.positions[:, -1] + 1).tolist()
    return [
        {
            "truth": truth[index],
            "map": np.round(rows[:, : 2 * num_pairs], MAP_DIGITS).tolist(),
            "last_query": np.round(rows[-1, : ends[index]], ROW_DIGITS).tolist(),
        }
        for index, rows in enumerate(attention)
    ]


def _rows(
    model: LanguageModel, examples: Examples, num_pairs: int
) -> tuple[Float[np.ndarray, "B P T"], Float[np.ndarray, "B P S"]]:
    """The queries' attention to all tokens, and the truth in the columns of the pairs."""
    attention = attention_map(model, examples.inputs, at=examples.positions)
    truth = torch.nn.functional.one_hot(value_positions(examples, num_pairs), 2 * num_pairs)
    return attention.double().cpu().numpy(), truth.double().cpu().numpy()
