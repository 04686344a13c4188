"""What a person reads of a bench."""

from rungwise.bench.tables import page, section

from laps import bench, lap

SLOW = lap("ours", [1.02] * 5, peak=90.0)


def test_the_table_has_the_ratios_and_the_peaks():
    lines = page(bench(SLOW)).splitlines()
    assert lines[4] == "| fp32 | 980 | 0.980 (0.980–0.980) | 0.980 (0.980–0.980) | 90.0 | 100.0 | 100.0 |"
    assert "fastest has 1.250 (1.250–1.250) times the tokens/s of a Trainer that is asked for nothing" in lines[9]
    assert "smallest 10.0 MiB of its 100.0, 10.0%" in lines[9]
    assert lines[7] == "(`make bench` in 1 min 1 s on a CPU; torch 2.13, transformers 5, accelerate 1; 2026-01-01)"
    assert "they take turns of 2 steps" in " ".join(page(bench()).split()) and "with 2 threads" in page(bench())


def test_the_readme_says_what_did_not_pass():
    assert "Checks: 10 PASS, 0 FAIL, 0 SKIP." in section(bench())
    text = section(bench(SLOW))
    assert "Checks: 8 PASS, 2 FAIL, 0 SKIP." in text
    assert "- FAIL fp32: tokens/s in times those of the bare loop: 0.980 (0.980–0.980); at least 1/1.01" in text


def test_a_disturbed_machine_is_said_in_the_table():
    text = section(bench(lap("bare", [1.0, 1.0, 3.0, 3.0, 3.0])))
    assert "| 3.000 (1.000–3.000) disturbed |" in text and "- SKIP fp32: " in text


def test_an_engine_that_failed_is_said_to_have():
    assert "| fp32 | 1,000 | 1.000 (1.000–1.000) | failed | 100.0 | 100.0 | failed |" in section(
        bench(lap("trainer", failed="it broke"))
    )


def test_other_kernels_than_pytorchs_are_said():
    made = bench()
    assert "kernels" not in page(made)
    made.rungs[0].laps["ours"].kernels["bf16"] = "rungwise"
    assert "- fp32: `--config fp32.yaml`; ablate.py computed bf16 products by kernels of its own" in page(made)
