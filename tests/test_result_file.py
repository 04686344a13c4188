"""The contract of `result.json`: written by a run, by a ladder for one that could not, and read by everyone."""

import json

from rungwise.report.rung_result import load
from rungwise.result_file import GROUPS, UNFINISHED, failed_result, read_result, write_reason, write_result
from rungwise.run.record import Record

import pytest
from harness import ROOT, tiny_settings
from results import result


def test_a_result_is_read_as_it_was_written(tmp_path):
    written = Record(tiny_settings()).as_dict()
    write_result(tmp_path, written)
    assert read_result(tmp_path) == json.loads(json.dumps(written))
    assert list(tmp_path.iterdir()) == [tmp_path / "result.json"]


def test_no_result_and_half_of_one_are_none(tmp_path):
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_text('{"schema": 1, "sett', encoding="utf-8")
    assert read_result(tmp_path) is None


def test_one_that_a_ladder_writes_has_the_groups_of_one_that_a_run_writes():
    written = Record(tiny_settings()).as_dict()
    assert list(failed_result("a", "why")) == list(written)
    assert set(GROUPS) == written.keys() - {"schema", "name", "status", "reason"}


@pytest.mark.parametrize(
    "settings, precision",
    [
        ({"mixed_precision": "no"}, "no"),
        ({"mixed_precision": "fp16"}, "fp16"),
        ({"mixed_precision": "no", "dtype": "bfloat16"}, "bf16"),
    ],
)
def test_a_result_from_before_precision_was_stored_is_given_it(tmp_path, settings, precision):
    made = result(**settings)
    del made["settings"]["precision"]
    write_result(tmp_path, made)
    assert read_result(tmp_path)["settings"]["precision"] == precision
    # One that has it is believed: it is not worked out again.
    write_result(tmp_path, {**made, "settings": {**made["settings"], "precision": "as stored"}})
    assert read_result(tmp_path)["settings"]["precision"] == "as stored"
    # A rung that had no settings yet has none now.
    write_result(tmp_path, failed_result("a", "why"))
    assert read_result(tmp_path)["settings"] == {}


def test_the_stored_ladders_precisions():
    stored = load(ROOT / "tests" / "stored" / "ladder")
    assert [rung.precision for rung in stored] == ["no", "bf16", "fp16", "bf16", "bf16", "bf16"]


def test_a_reason_is_put_into_a_result_that_has_none_yet(tmp_path):
    write_reason(tmp_path, "nobody is there to be told")
    assert read_result(tmp_path) is None
    write_result(tmp_path, result(status="failed", reason=UNFINISHED))
    write_reason(tmp_path, "the first")
    write_reason(tmp_path, "the second")
    assert read_result(tmp_path)["reason"] == "the first"
