"""Sections of Markdown files that commands write."""

from rungwise.report.sections import source, write_section

import pytest


def test_a_section_goes_between_its_markers(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- a -->\nold\n<!-- /a -->\n<!-- b -->\nkept\n<!-- /b -->\nafter\n", encoding="utf-8")
    write_section(path, "a", "x | \\1 | y")
    kept = "<!-- b -->\nkept\n<!-- /b -->\nafter\n"
    assert path.read_text(encoding="utf-8") == f"before\n<!-- a -->\nx | \\1 | y\n<!-- /a -->\n{kept}"
    with pytest.raises(ValueError, match="add the lines <!-- c --> and <!-- /c -->"):
        write_section(path, "c", "")


def test_where_figures_are_from():
    environment = {
        "torch": "2",
        "transformers": "5",
        "accelerate": "1",
        "date": "2026-11-30T12",
        "device_name": "A CPU",
    }
    words = source("python recipes/x.py", environment, 130)
    assert words == "(`python recipes/x.py` in 2 min 10 s on A CPU; torch 2, transformers 5, accelerate 1; 2026-11-30)"
    assert source("make x", environment, None).startswith("(`make x` on A CPU;")
    here = {**environment, "device": "cpu", "cores": 2, "native_precision": ["fp32", "bf16"]}
    assert " on 2 cores of A CPU (products in hardware: fp32 and bf16); " in source("make x", here, 1)
