"""W&B that cannot be reached, is slow, fails or is gone: the run is the same without it, and a line says so."""

import json

from rungwise.tracking.wandb_run import DEFAULTS

import pytest
from forked import forking, losses_of_a_whole_run, result_in, rows_in
from wandb_server import serving

ONLINE = {"WANDB_MODE": "online", "WANDB_API_KEY": "5ecre7" + "0f" * 17}
# Seconds that W&B gets in place of our own, which are not waited for here.
SHORT = {"WANDB_INIT_TIMEOUT": "2", "WANDB_FINISH_TIMEOUT": "2"}
# Of a server that is slow, for each answer.
SLOW = 3
# Before the fourth step, all that W&B has started is killed.
KILLED = """
import psutil
from rungwise.run.run import Run
log = Run.log
def killing(self, step):
    if step.number == 4:
        for child in psutil.Process().children(recursive=True):
            child.kill()
        psutil.wait_procs(psutil.Process().children(recursive=True), timeout=60)
    log(self, step)
Run.log = killing
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forked")
    (folder / "temporary").mkdir()
    with forking(folder, TMPDIR=str(folder / "temporary")) as server:
        yield server


@pytest.fixture(scope="module")
def losses(forked, tmp_path_factory):
    return losses_of_a_whole_run(forked, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def tracked(forked, losses, tmp_path):
    """Runs one that W&B is told of. Returns what it said and its result."""

    def run(before="", **environment):
        folder = tmp_path / "run"
        ended = forked.run("--output_dir", str(folder), "--report_to", "wandb", before=before, **environment)
        assert ended.code == 0 and "Traceback" not in ended.said, ended.said
        result = result_in(folder)
        assert (result["status"], result["loss"]["trajectory"]) == ("ok", losses)
        assert [row["train/loss"] for row in rows_in(folder)] == losses
        return ended.said, result

    return run


def test_what_nobody_waits_long_for():
    """A run trains nothing before the first of these has passed; a ladder's next rung waits for the second."""
    assert DEFAULTS["init_timeout"] <= 10 and DEFAULTS["finish_timeout"] <= 30


TROUBLES = {"slow": {"seconds": SLOW}, "errors": {"status": 500}, "denial": {"status": 403}}


@pytest.mark.breadth(2)
@pytest.mark.parametrize("trouble", ["unreachable", *TROUBLES])
def test_a_server_that_cannot_be_used_from_the_start(tracked, trouble):
    with serving(**TROUBLES.get(trouble, {})) as server:
        address = "http://127.0.0.1:9" if trouble == "unreachable" else server.url
        said, result = tracked(**ONLINE, **SHORT, WANDB_BASE_URL=address)
    # W&B's own account of its trouble has tracebacks with a person's paths in them, and is waited for at the end.
    assert not [line for line, _ in server.requests if "/otel/" in line]
    assert said.count("offline (online failed: ") == 1 and "send it later: wandb sync " in said
    assert result["tracker"]["name"] == "wandb" and result["tracker"]["url"] is None


@pytest.mark.breadth(1)
@pytest.mark.parametrize("trouble", ["slow", "errors"])
def test_a_server_that_takes_no_rows(tracked, trouble):
    """It begins the run, and then is no more."""
    with serving(**TROUBLES[trouble], at="/files") as server:
        said, result = tracked(**ONLINE, **SHORT, WANDB_BASE_URL=server.url)
    assert said.count("(not all was sent within 2 s)") == 1 and "send the rest later: wandb sync " in said
    assert result["tracker"]["url"]


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_wandbs_own_process_is_killed(tracked, mode):
    with serving() as server:
        said, _ = tracked(KILLED, **ONLINE | {"WANDB_MODE": mode}, WANDB_BASE_URL=server.url)
    # At once, and in the summary.
    assert said.count("W&B failed after step 3 (") == 2 and said.count("and is told no more") == 2


def test_a_folder_that_wandb_cannot_write_to(tracked, tmp_path):
    """It takes the system's for temporary files, and the run's last words say where."""
    (tmp_path / "file").touch()
    said, _ = tracked(WANDB_MODE="offline", WANDB_DIR=str(tmp_path / "file" / "x"))
    assert said.count("/temporary/wandb/offline-run-") == 2


def test_a_tracker_that_cannot_begin(tracked):
    """Nor offline: the run goes on without it."""
    fails = "import wandb\ndef init(*_, **__): raise OSError(28, 'No space left on device')\nwandb.init = init"
    said, result = tracked(fails, WANDB_MODE="offline")
    assert said.count("W&B failed after step 0 (OSError: [Errno 28] No space left on device)") == 2
    assert result["tracker"] == {} and "tracker" not in json.dumps(result["not_measured"])
