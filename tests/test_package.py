"""The package as users get it: its wheel, what importing it costs, its public names, and which room imports which."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import rebased
import rebased.corpora
import rebased.kernels
import rebased.layers
import rebased.models
import rebased.ops
import rebased.runs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rebased"


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed, away from this checkout's paths and settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


# ---- The wheel ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-I", "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (path,) = folder.iterdir()
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"rebased-{rebased.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {name for name in names if name.startswith("rebased/")}
    assert code == {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*") if is_source(path)}
    assert "rebased/py.typed" in code
    info = f"rebased-{rebased.__version__}.dist-info"
    assert f"{info}/licenses/LICENSE" in names
    assert all(name.startswith(f"{info}/") for name in names - code)


def is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def test_wheel_needs_three_packages_and_offers_a_command(wheel: Path) -> None:
    info = f"rebased-{rebased.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in required} == {"torch", "numpy", "jaxtyping"}
    assert {"all", "cli", "figures", "safetensors", "training", "ray", "wandb"} <= set(
        metadata.get_all("Provides-Extra")
    )
    assert metadata["Requires-Python"] == ">=3.11"
    assert "rebased = rebased.cli:main" in entry_points


def test_wheel_installs_and_works(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which borrows torch and the like from this one through a .pth file.

    Such a file adds paths but does not follow the .pth files it finds there, so an editable install of this checkout
    stays out of sight.
    """
    run(sys.executable, "-I", "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin" / "python"
    run(sys.executable, "-I", "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path)}))
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    script = (
        "import rebased, torch; x = torch.ones(1, 2, 1, 3); "
        "print(rebased.__file__, rebased.__version__, rebased.kernel_attention(x, x, x).sum().item())"
    )
    assert run(python, "-I", "-c", script).split() == [
        str(packages / "rebased/__init__.py"),
        rebased.__version__,
        "6.0",
    ]
    assert run(tmp_path / "bin" / "rebased", "--version").split() == ["rebased", rebased.__version__]


# ---- What importing it costs ----

HEAVY = {"typer", "rich", "matplotlib", "pandas", "scipy", "transformers", "safetensors", "tensorboard", "ray"}


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a statement brings into a fresh interpreter that has imported torch."""
    script = (
        f"import sys, torch; sys.path.insert(0, {str(SOURCE.parent)!r}); before = set(sys.modules); {statement}; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    return set(run(sys.executable, "-I", "-c", script).split())


def test_import_is_light() -> None:
    imported = imported_by("import rebased")
    assert {"rebased", "jaxtyping"} <= imported
    assert imported & HEAVY == set()


def test_import_leaves_the_triton_kernels_and_the_compiler_alone() -> None:
    """Our own modules are looked for: torch itself imports Triton where it is installed."""
    script = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import rebased; "
        "print(*[name for name in sys.modules if name.startswith(('rebased.ops.triton', 'torch._dynamo'))])"
    )
    assert run(sys.executable, "-I", "-c", script).split() == []


def test_import_probe_sees_heavy_modules() -> None:
    assert {"typer", "rich"} <= imported_by("import rebased.cli.app")


# ---- Names and versions ----


def test_public_names() -> None:
    """A new name is a decision: it is made here."""
    assert rebased.__all__ == [
        "BASED",
        "H3",
        "REBASED",
        "RWKV",
        "Attention",
        "Based",
        "Hyena",
        "KernelAttention",
        "KernelState",
        "Mamba",
        "ReBased",
        "ShortConv",
        "attention_matrix",
        "initial_state",
        "kernel_attention",
        "kernel_attention_step",
    ]
    assert rebased.ops.__all__ == [
        "BACKENDS",
        "KernelState",
        "WKVState",
        "attention_matrix",
        "initial_state",
        "initial_wkv_state",
        "kernel_attention",
        "kernel_attention_step",
        "linear_cross_entropy",
        "norm_affine",
        "selective_scan",
        "selective_scan_step",
        "wkv",
        "wkv_step",
    ]
    assert rebased.kernels.__all__ == [
        "BASED",
        "DPFP",
        "ELEMENTWISE_SQUARE",
        "ELU_PLUS_ONE",
        "REBASED",
        "RELU",
        "RFA",
        "CosFormer",
        "FeatureMap",
        "Kernel",
        "Polynomial",
        "Power",
        "TermKernel",
    ]
    assert rebased.layers.__all__ == [
        "H3",
        "KERNELS",
        "MIXERS",
        "RWKV",
        "Attention",
        "Based",
        "Hyena",
        "KernelAttention",
        "Mamba",
        "Mixer",
        "MixerState",
        "PreviousToken",
        "ReBased",
        "ShortConv",
        "pick",
    ]
    assert rebased.corpora.__all__ == [
        "Corpus",
        "Documents",
        "Progress",
        "Split",
        "Windows",
        "byte_tokenizer",
        "hash_tokenizer",
        "open_corpus",
        "prepare",
    ]
    assert rebased.runs.__all__ == [
        "Run",
        "find_runs",
        "is_finished",
        "read_run",
        "run_name",
        "write_config",
        "write_metrics",
        "write_result",
        "write_weights",
    ]
    assert rebased.models.__all__ == [
        "PRESETS",
        "STACKS",
        "LanguageModel",
        "LayerConfig",
        "ModelConfig",
        "ModelState",
        "preset",
    ]


@pytest.mark.parametrize(
    "module",
    [rebased, rebased.corpora, rebased.ops, rebased.kernels, rebased.layers, rebased.models, rebased.runs],
    ids=lambda module: module.__name__,
)
def test_public_names_exist(module: object) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == str(citation["version"]) == rebased.__version__


def test_citation_can_be_cited() -> None:
    """The fields that the Citation File Format requires, and the licence that the project has."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"


# ---- Imports go one way: each room may use those before it in the chain ----

CHAIN = ["checks", "replay", "monomials", "kernels", "ops", "layers", "rebased", "models", "hf", "training"]
"""From the ground up; "rebased" is the package's own ``__init__``, which re-exports kernels, ops and layers."""
MAY_IMPORT = {room: set(CHAIN[:index]) for index, room in enumerate(CHAIN)}
MAY_IMPORT["files"] = MAY_IMPORT["locks"] = set()
MAY_IMPORT["tasks"] = {"checks"}
MAY_IMPORT["runs"] = {"files"}
MAY_IMPORT["corpora"] = {"files", "runs", "locks"}
MAY_IMPORT["environment"] = {"rebased"}
MAY_IMPORT["analysis"] = MAY_IMPORT["hf"] | {"hf", "runs", "corpora"}
MAY_IMPORT["training"] = MAY_IMPORT["training"] | {"tasks", "files", "runs", "locks", "corpora", "environment"}
MAY_IMPORT["bench"] = {*CHAIN, "tasks", "files", "runs", "corpora", "environment", "analysis"}
MAY_IMPORT["paper"] = MAY_IMPORT["bench"] | {"locks"}
MAY_IMPORT["cli"] = MAY_IMPORT["paper"] | {"paper", "bench"}


def upward_imports(package: Path) -> list[str]:
    """Every import in the package ``rebased`` at this path that points up, and every file that is in no room."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        room = "rebased" if place == Path("__init__.py") else Path(place.parts[0]).stem
        if room not in MAY_IMPORT:
            found.append(f"{place} is in no room")
            continue
        for line, target in imported_rooms(ast.parse(path.read_text()), ["rebased", *place.parts[:-1]]):
            if target != room and target not in MAY_IMPORT[room]:
                found.append(f"{place}:{line} imports {target}")
    return found


def imported_rooms(tree: ast.AST, parents: list[str]) -> Iterator[tuple[int, str]]:
    """Line and room of every import of ours, wherever it stands, in a module of the package named by ``parents``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) + 1 - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            modules = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for module in modules:
            if module[0] == "rebased":
                yield node.lineno, module[1] if len(module) > 1 and module[1] in MAY_IMPORT else "rebased"


def test_imports_go_one_way() -> None:
    assert upward_imports(SOURCE) == []


@pytest.mark.parametrize(
    ("place", "code", "expected"),
    [
        pytest.param("ops/a.py", "from rebased.layers import b", ["ops/a.py:1 imports layers"], id="from"),
        pytest.param("ops/a.py", "import os, rebased.models.b as b", ["ops/a.py:1 imports models"], id="import as"),
        pytest.param("layers/a.py", "\nfrom rebased import hf", ["layers/a.py:2 imports hf"], id="a room by name"),
        pytest.param("ops/a.py", "from ..cli.b import c", ["ops/a.py:1 imports cli"], id="relative"),
        pytest.param("ops/b/a.py", "from ... import bench", ["ops/b/a.py:1 imports bench"], id="relative, deeper"),
        pytest.param("runs.py", "from .tasks import b", ["runs.py:1 imports tasks"], id="relative, of a module"),
        pytest.param(
            "kernels.py", "def f():\n    import rebased.ops", ["kernels.py:2 imports ops"], id="in a function"
        ),
        pytest.param("ops/a.py", "if x:\n from rebased.hf import b", ["ops/a.py:2 imports hf"], id="under a condition"),
        pytest.param("ops/a.py", "from rebased import REBASED", ["ops/a.py:1 imports rebased"], id="the package"),
        pytest.param("__init__.py", "from . import models", ["__init__.py:1 imports models"], id="in the package"),
        pytest.param("bench/a.py", "from rebased.paper import b", ["bench/a.py:1 imports paper"], id="neighbours"),
        pytest.param("tasks/a.py", "from rebased.kernels import b", ["tasks/a.py:1 imports kernels"], id="tasks"),
        pytest.param("corpora/a.py", "import rebased.tasks", ["corpora/a.py:1 imports tasks"], id="corpora"),
        pytest.param("training/a.py", "import rebased.analysis", ["training/a.py:1 imports analysis"], id="analysis"),
        pytest.param("misc/a.py", "", ["misc/a.py is in no room"], id="no room"),
        pytest.param("ops/a.py", "from rebased.ops.b import c\nfrom . import d", [], id="fine: its own room"),
        pytest.param("ops/a.py", "from rebased.kernels import b\nimport torch", [], id="fine: downwards"),
        pytest.param("ops/a.py", "import rebased_tools.models", [], id="fine: another package"),
        pytest.param("analysis/a.py", "from rebased import models, runs", [], id="fine: analysis"),
        pytest.param("cli/a.py", "from rebased import __version__, bench, paper", [], id="fine: the command line"),
    ],
)
def test_upward_imports_are_found(tmp_path: Path, place: str, code: str, expected: list[str]) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    assert upward_imports(tmp_path) == expected
