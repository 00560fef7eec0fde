"""`rebased bench …`: time this package beside its peers."""

import typer

from rebased.cli.bench_decode import bench_decode
from rebased.cli.bench_drift import bench_drift
from rebased.cli.bench_lm import bench_lm
from rebased.cli.bench_mixers import bench_mixers
from rebased.cli.bench_mqar import bench_mqar
from rebased.cli.bench_ops import bench_ops
from rebased.cli.bench_plot import bench_plot

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="Measure this package: speed beside its peers, accuracy over long streams.", no_args_is_help=True
)
bench_app.command("ops")(bench_ops)
bench_app.command("decode")(bench_decode)
bench_app.command("mixers")(bench_mixers)
bench_app.command("mqar")(bench_mqar)
bench_app.command("lm")(bench_lm)
bench_app.command("plot")(bench_plot)
bench_app.command("drift")(bench_drift)
