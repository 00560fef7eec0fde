"""Tables 4 and 9: how many parameters the models have."""

from collections.abc import Sequence

import torch

from rebased.analysis.pages import Cell, Claim, Section, Table
from rebased.models import LanguageModel, ModelConfig, preset
from rebased.paper.experiment import NO_GRIDS, Data, Experiment, Material
from rebased.paper.published import TABLE_4, TABLE_9

__all__ = ["TABLE4", "TABLE9"]

_NAMES = {
    "attention": "Attention",
    "conv_attention": "ConvAttention",
    "rwkv": "RWKV",
    "conv_rwkv": "ConvRWKV",
    "mamba": "Mamba",
    "based": "Based",
    "rebased": "ReBased",
}


def count_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in LanguageModel(config).parameters())


def _measure_table4(material: Material) -> Data:
    return {
        stack: {
            str(width): count_parameters(preset(f"mqar-{stack}", d_model=width, seq_len=length))
            for width, (_, length) in row.items()
        }
        for stack, row in TABLE_4.items()
    }


def _measure_table9(material: Material) -> Data:
    return {name: count_parameters(preset(f"lm-{name}")) for name in TABLE_9}


def _compared(count: int, known: int, length: int | None = None) -> Cell:
    """``length`` of the position table, where it is not the paper's but ours."""
    text = f"{count:,}" if length is None else f"{count:,} [{length}]"
    if count == known:
        return Cell(text, note="as in the paper")
    return Cell(f"{text} (the paper: {known:,})", "higher" if count > known else "lower")


def _present_table4(data: Data) -> Section:
    widths = list(TABLE_4["attention"])
    rows: list[list[Cell | str]] = [
        [_NAMES[stack], *(_compared(data[stack][str(width)], *TABLE_4[stack][width]) for width in widths)]
        for stack in TABLE_4
    ]
    equal = [data[stack][str(width)] == TABLE_4[stack][width][0] for stack in TABLE_4 for width in widths]
    header = ["model", *(f"d = {width}" for width in widths)]
    title = "Table 4: parameters of the recall models"
    table = Table.of("parameters, in brackets the length of the position table", header, rows)
    lengths = [length for row in TABLE_4.values() for _, length in row.values()]
    agreement = (
        f"{_agreement(equal)} The paper does not say for which length of the position table: those here, "
        f"{min(lengths)} to {max(lengths)}, were chosen cell by cell so that the count fits."
    )
    return Section(title, (agreement, table), (_claim("recall", equal, agreement),))


def _present_table9(data: Data) -> Section:
    rows: list[list[Cell | str]] = [[_NAMES[name], _compared(data[name], known)] for name, known in TABLE_9.items()]
    equal = [data[name] == known for name, known in TABLE_9.items()]
    parts = _agreement(equal), Table.of("parameters", ("model", "parameters"), rows)
    return Section("Table 9: parameters of the language models", parts, (_claim("language", equal, parts[0]),))


def _claim(kind: str, equal: Sequence[bool], ours: str) -> Claim:
    theirs = f"The {kind} models have the numbers of parameters that are printed."
    verdict = "agrees" if all(equal) else "in part" if any(equal) else "differs"
    return Claim(theirs, ours, verdict)


def _agreement(equal: Sequence[bool]) -> str:
    return f"{sum(equal)} of {len(equal)} counts are the paper's to the unit."


TABLE4 = Experiment(
    name="table4",
    title="Parameters of recall models",
    grids=NO_GRIDS,
    measure=_measure_table4,
    present=_present_table4,
)
TABLE9 = Experiment(
    name="table9",
    title="Parameters of language models",
    grids=NO_GRIDS,
    measure=_measure_table9,
    present=_present_table9,
)
