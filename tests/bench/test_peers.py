"""Peers are looked for when asked for, and said to be absent where they are."""

import subprocess
import sys
from pathlib import Path

import pytest

from rebased.bench.peers import PEERS, PeerUnavailableError, load_peer


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``fla`` with the functions we look for, ahead of any other."""
    for name, peer in PEERS.items():
        folder = tmp_path.joinpath(*peer.module.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "__init__.py").open("a") as file:
            file.write(f"def {name}(q, k, v):\n    return '{name}'\n")
    for module in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[module]


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.usefixtures("fake")
def test_found_where_installed(name: str) -> None:
    assert load_peer(name, device="cuda")(None, None, None) == name  # type: ignore[arg-type]


def test_import_that_fails_is_named(fake: Path) -> None:
    (fake / "fla" / "ops" / "__init__.py").write_text("raise RuntimeError('0 active drivers')\n")
    with pytest.raises(PeerUnavailableError, match="flash-linear-attention cannot be imported: 0 active drivers"):
        load_peer("parallel_based", device="cuda")


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebased.bench.peers.find_spec", lambda name: None)
    with pytest.raises(PeerUnavailableError, match="flash-linear-attention is not installed"):
        load_peer("parallel_rebased", device="cuda")


def test_not_on_a_cpu() -> None:
    with pytest.raises(PeerUnavailableError, match="needs a CUDA device"):
        load_peer("parallel_rebased", device="cpu")


def test_importing_the_bench_does_not_import_peers() -> None:
    script = "import sys, rebased.bench; print('fla' in sys.modules or 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
