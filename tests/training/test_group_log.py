"""The log of a group survives being cut off."""

from pathlib import Path

from rebased.training.log import append_log, read_log


def test_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    append_log(path, event="start")
    with path.open("a") as file:
        file.write('{"event": "ep')
    append_log(path, event="again", epoch=1)
    append_log(path, event="end")
    entries = read_log(path)
    assert [entry["event"] for entry in entries] == ["start", "again", "end"]
    assert all("date" in entry for entry in entries)


def test_without_a_file_there_are_no_entries(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log.jsonl") == []
