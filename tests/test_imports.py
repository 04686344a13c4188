"""What is imported once is not looked through again, in each process that a command starts."""

import os
import subprocess
import sys

import pytest
from harness import ENVIRONMENT, ROOT, TINY

RUN = """
import gc
import ablate
code = ablate.main({argv!r})
# Of a million objects what came after the imports, which are kept apart, is looked through.
print("objects", gc.get_freeze_count(), len(gc.get_objects()), gc.isenabled())
raise SystemExit(code)
"""


def test_a_run_keeps_its_imports_from_the_garbage_collector(tmp_path):
    argv = [*TINY, "--config", "accelerate_configs/fp32.yaml", "--max_steps", "4", "--untimed_steps", "2"]
    code = RUN.format(argv=[*argv, "--forecast", "false", "--output_dir", str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT / "recipes")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept, others, enabled = done.stdout.splitlines()[-1].split()[1:]
    assert int(kept) > 300_000 > int(others) and enabled == "True"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(enabled):
    """Also where somebody keeps it off; and frozen once, since what exists later may be garbage one day."""
    code = f"""
import gc
from rungwise import imports
{"" if enabled else "gc.disable()"}
with imports.kept():
    assert not gc.isenabled()
assert gc.isenabled() is {enabled} and (first := gc.get_freeze_count())
garbage = [[] for _ in range(1000)]
with imports.kept():
    pass
assert gc.get_freeze_count() <= first
"""
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python says nothing of such strings before 3.12")
def test_pythons_word_on_strings_of_torchao_is_not_passed_on():
    """Where pip has not compiled it, the first run does: that of others is still said."""
    code = """
import rungwise
for package in ("torchao", "mine"):
    compile("x = '\\\\.'", f"/site-packages/{package}/a.py", "exec")
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "/mine/a.py" in done.stderr and "torchao" not in done.stderr
