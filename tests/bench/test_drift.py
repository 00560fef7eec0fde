"""The drift measurement, on streams short enough for a test."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rebased.bench.drift import STREAMS, measure_drift
from rebased.cli.app import app


def test_compensated_states_drift_less_than_plain_ones() -> None:
    found = {(each.stream, each.feed): each for each in measure_drift(5000).drifts}
    assert len(found) == 3 * len(STREAMS)
    for stream in STREAMS:
        plain = found[stream, "token by token, without residual"]
        for feed in ("token by token", "pieces of 4096"):
            assert found[stream, feed].values_error < 1e-6
            assert found[stream, feed].normalizer_error < 1e-6
            assert found[stream, feed].normalizer_error < plain.normalizer_error
    assert found["equal", "token by token, without residual"].normalizer_error > 1e-6


def test_the_command_writes_what_it_prints(tmp_path: Path) -> None:
    out = tmp_path / "drift.json"
    result = CliRunner().invoke(app, ["bench", "drift", "--tokens", "50", "--out", str(out)])
    assert result.exit_code == 0, result.output
    first = json.loads(out.read_text())["drifts"][0]
    assert first["tokens"] == 50
    assert f"{first['values_error']:.1e}" in result.output


def test_a_stream_needs_tokens() -> None:
    with pytest.raises(ValueError, match="num_tokens=0"):
        measure_drift(0)
