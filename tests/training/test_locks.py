"""Locks between processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from rebased.locks import LockedError, alone_in, locked

HOLD = """
import sys, time
from pathlib import Path
from rebased.locks import locked
with locked(Path(sys.argv[1]), "it"):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_lock_of_another_process_is_respected_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            expected = f"the group g is in use by process {holder.pid}, which holds {path}"
            with pytest.raises(LockedError, match=expected), locked(path, "the group g", patience=0.2):
                pytest.fail("two processes hold one lock")
        finally:
            holder.kill()
    with locked(path, "the group g", patience=0.2):
        pass


def test_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", "it"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock", "it", patience=0):
        pass


def test_folder_is_left_as_it_was(tmp_path: Path) -> None:
    with alone_in(tmp_path, "being painted"):
        expected = f"{tmp_path} is being painted by another process"
        with pytest.raises(ValueError, match=expected), alone_in(tmp_path, "being painted"):
            pytest.fail("two hold one lock")
        assert not list(tmp_path.iterdir())
    with alone_in(tmp_path, "being painted"):
        pass
