"""Who trains a sweep's groups: this process, several of this machine, or a cluster."""

from rebased.checks import check_choice, check_integer
from rebased.training.engines.engine import Engine
from rebased.training.engines.processes import Processes
from rebased.training.engines.ray import Ray
from rebased.training.engines.serial import Serial

__all__ = ["ENGINES", "Engine", "Processes", "Ray", "Serial", "make_engine"]

ENGINES = ("serial", "processes", "ray")


def make_engine(name: str | None = None, *, device: str, jobs: int = 1, ray_address: str | None = None) -> Engine:
    """Without a name: processes if there are several jobs. ValueError for what does not go together."""
    if name is None:
        name = "serial" if jobs == 1 else "processes"
    check_choice("engine", name, ENGINES)
    check_integer("jobs", jobs)
    if ray_address is not None and name != "ray":
        raise ValueError(f"ray_address={ray_address!r} goes with engine='ray', not with {name!r}")
    if ray_address is not None and jobs != 1:
        raise ValueError(
            f"jobs={jobs} is for a cluster of this machine; ray_address={ray_address!r} has a size already"
        )
    if name == "ray":
        return Ray(device, jobs=jobs, address=ray_address)
    if name == "processes":
        return Processes(device, jobs)
    if jobs != 1:
        raise ValueError(f"jobs={jobs} goes with engine='processes' or 'ray'; 'serial' has one")
    return Serial(device)
