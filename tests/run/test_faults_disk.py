"""A full disk, and a folder that cannot be written to: what was measured is there, with the reason; no half file."""

import shutil
import subprocess

from rungwise.result_file import UNFINISHED, write_result

import pytest
from forked import forking, result_in, rows_in
from results import result

# Mounts a small disk, which goes when the process does, and becomes what follows.
MOUNT = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"']
# Takes all that is left on a disk.
FILL = """
def fill(disk):
    with open(f"{disk}/others", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
"""
# Does so when a function of `Run` is called for the nth time.
FULL = """
from rungwise.run.run import Run
called, calls = Run.{name}, []
def full(self, *args):
    calls.append(1)
    if len(calls) == {nth}:
        {first}
        fill(self.folder.parent)
    return called(self, *args)
Run.{name} = full
"""
READ_ONLY = """
import subprocess
from rungwise.run.run import Run
log = Run.log
def remount(self, step):
    if step.number == 6:
        subprocess.run(["mount", "-o", "remount,ro", {disk!r}], check=True)
    log(self, step)
Run.log = remount
"""
# A ladder whose rungs train nothing, and whose disk is full behind its first one, or at its second.
RUNGS = """
flags: {config: accelerate_configs/fp32.yaml, dataset_name: synthetic, block_size: 32, report_to: none,
        config_overrides: "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2"}
rungs: {a: {}, b: {gradient_accumulation_steps: 2}}
"""
CLIMB = """
import sys
from rungwise.ladder import ladder as ladders
from rungwise.report import plots
from rungwise.result_file import write_result
import ladder
from results import result

def run_rung(rung, folder):
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if new and rung.name == "b" and not {report}:
        fill({disk!r})
    write_result(folder, {{**result(), "name": rung.name}})
    if rung.name == "a" and {report}:
        fill({disk!r})
    return result()

plots.draw = lambda *_: []
ladders.run_rung = run_rung
sys.argv[1:] = {argv!r}
raise SystemExit(ladder.main())
"""
NO_SPACE = "[Errno 28] No space left on device"
LONG = ("--max_steps", "60", "--checkpointing_steps", "60")


def full(name, nth=1, first="pass"):
    return FILL + FULL.format(name=name, nth=nth, first=first)


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A process that runs are forked from, a folder on its disk, and the same folder as it is seen from here."""
    folder = tmp_path_factory.mktemp("mounted")
    command = [*MOUNT, str(folder)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("mounts a small disk, which this user may not")
    with forking(tmp_path_factory.mktemp("forked"), *command) as server:
        yield server, folder, server.root / folder.relative_to("/")


@pytest.fixture
def run(disk):
    """Runs one on the disk, which is empty before. Returns how it ended, and its folder."""
    server, folder, seen = disk
    for path in seen.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def run(*flags, before=""):
        return server.run("--output_dir", str(folder / "run"), *flags, before=before), seen / "run"

    return run


def is_whole(folder):
    """Every step that was measured is in the result, in metrics.jsonl all but the one that had no room there."""
    found, rows = result_in(folder), rows_in(folder)
    losses = found["loss"]["trajectory"]
    assert [row["train/loss"] for row in rows] == losses[: len(rows)] and len(losses) - len(rows) in (0, 1)
    assert found["memory"]["peak_allocated_mib"] > 0 and found["evidence"]["processes"] == 1
    left = {path.name for path in folder.iterdir()}
    assert not [name for name in left if name.endswith((".tmp", ".partial")) or name == ".reserve"], left
    return found, len(losses)


# Where the disk is full, what asks for room then, and after how many steps it does.
MOMENTS = {
    "a row": (full("log", 6), LONG, range(6, 40)),
    "a checkpoint": (full("save_checkpoint", 5), (), [5]),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_in_the_middle(run, moment):
    before, flags, steps = MOMENTS[moment]
    ended, folder = run(*flags, before=before)
    assert ended.code == 1
    found, taken = is_whole(folder)
    assert found["status"] == "failed" and "No space left on device" in found["reason"] and taken in steps
    assert found["reason"] in ended.said
    # Once there is room, the same command works.
    (folder.parent / "others").unlink()
    ended, folder = run()
    assert ended.code == 0 and is_whole(folder)[0]["status"] == "ok"


def test_a_disk_that_is_full_when_all_is_done(run):
    """The room for the result is there."""
    ended, folder = run(before=full("save_model"))
    assert ended.code == 0 and (is_whole(folder)[0]["status"], len(rows_in(folder))) == ("ok", 12)


def test_a_result_that_finds_no_room_is_no_success(run):
    ended, folder = run(before=full("save_model", first="(self.folder / '.reserve').unlink()"))
    assert ended.code == 1 and ended.said.count("Traceback") == 0
    assert f"fp32: failed - the result cannot be written: {NO_SPACE}" in ended.said
    assert result_in(folder)["reason"] == UNFINISHED and len(rows_in(folder)) == 12
    assert not list(folder.glob("*.tmp"))


def test_a_disk_that_is_full_before_anything_is_trained(run):
    ended, folder = run(before=full("__enter__"))
    assert ended.code == 1 and f"the result cannot be written: {NO_SPACE}" in ended.said
    assert not [path for path in folder.iterdir() if path.stat().st_size]
    (folder.parent / "others").unlink()
    assert run()[0].code == 0


@pytest.mark.parametrize("moment", ["its report", "its next rung"])
def test_a_ladder_whose_disk_is_full_goes_on_once_there_is_room(run, disk, tmp_path, moment):
    server, mounted, seen = disk
    (tmp_path / "rungs.yaml").write_text(RUNGS, encoding="utf-8")
    files = ["--ladder", str(tmp_path / "rungs.yaml"), "--output_dir", str(mounted / "ladder")]
    climb = FILL + CLIMB.format(argv=files, disk=str(mounted), report=moment == "its report")
    ended = server.run(before=climb)
    assert (ended.code, ended.said.count("Traceback")) == (1, 0), ended.said
    assert (
        f"{mounted / 'ladder'}: the ladder cannot go on ({NO_SPACE}" in ended.said
        and "the same command continues" in ended.said
    )
    (seen / "others").unlink()
    ended = server.run(before=climb)
    assert ended.code == 0, ended.said
    assert [rung in ended.said for rung in ("a: finished before", "b: finished before")] == [True, False]
    assert "| a | ok |" in (seen / "ladder" / "report.md").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_to(run, disk):
    """From the start it is refused, as any fault of a call; later on it ends the run. A ladder's is refused alike."""
    server, mounted, seen = disk
    (seen / "some" / "a_rung" / "round-1").mkdir(parents=True)
    write_result(seen / "some" / "a_rung" / "round-1", result())
    ended, folder = run(before=READ_ONLY.format(disk=str(mounted)))
    try:
        assert ended.code == 1 and "the result cannot be written: [Errno 30] Read-only file system" in ended.said
        assert (result_in(folder)["reason"], len(rows_in(folder))) == (UNFINISHED, 5)
        words = f"{mounted} cannot be written to; name another folder"
        assert refused(server, str(mounted / "other" / "run")).count(words) == 1
        assert words in refused(server, climb=["--output_dir", str(mounted / "ladder")])
        # What is there can be looked at.
        said = refused(server, climb=["--report_only", str(mounted / "some")])
        assert "a_rung" in said and "its report cannot be written ([Errno 30] Read-only file system" in said
        assert {path.name for path in seen.iterdir()} == {"run", "some"}
    finally:
        server.run(before=f"import os; raise SystemExit(os.system('mount -o remount,rw {mounted}'))")
    assert run()[0].code == 0


def refused(server, output_dir="unused", climb=None):
    """What a refused call says: of a run, or of a ladder with these arguments."""
    ladder = f"import ladder, sys; sys.argv[1:] = {climb}; raise SystemExit(ladder.main())"
    ended = server.run("--output_dir", output_dir, before=ladder if climb else "")
    assert ended.code == 2 and "Traceback" not in ended.said, ended.said
    return ended.said
