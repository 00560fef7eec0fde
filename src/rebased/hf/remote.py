"""How a saved model is found by programs that do not import `rebased.hf`: with ``trust_remote_code=True``."""

from pathlib import Path

__all__ = ["AUTO_MAP", "write_module"]

_MODULE = "modeling_rebased"
AUTO_MAP = {
    "AutoConfig": f"{_MODULE}.RebasedConfig",
    "AutoModel": f"{_MODULE}.RebasedModel",
    "AutoModelForCausalLM": f"{_MODULE}.RebasedForCausalLM",
}
_TEXT = '''"""Where transformers finds this model's classes: in the package `rebased`, which must be installed."""

from rebased.hf import RebasedConfig, RebasedForCausalLM, RebasedModel

__all__ = ["RebasedConfig", "RebasedForCausalLM", "RebasedModel"]
'''


def write_module(folder: Path) -> None:
    """A module beside the weights that imports the installed package."""
    (folder / f"{_MODULE}.py").write_text(_TEXT)
