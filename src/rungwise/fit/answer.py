"""From a question to its answer: forecasts, the choice, a picture, a file, and runs where they are asked for."""

import dataclasses
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..forecast import Forecast, forecast
from ..result_file import write_json
from . import console, trial
from .advice import Advice, advice
from .candidates import Candidate, Question
from .choice import Choice, Row
from .memory import find_room
from .picture import draw


def answer(options: Namespace, extra: Sequence[str], folder: Path) -> int:
    """Prints what fits and writes it into a folder; returns 0 if something does, and was measured to where asked for.

    Args:
        options: memory, gpu, num_processes, reserve, verify, fastest.
        extra: flags of `ablate.py`.
        folder: gets `fit.json`, `fit.png`, and a folder for each run.

    Raises:
        SettingsError: with all that is wrong with the question.
    """
    question = ask(options, extra)
    room = question.room
    _print(console.question_lines(question))

    def foresee(candidate: Candidate) -> Forecast:
        return forecast(candidate.settings, question.config, room.device, room.capability)

    choice = Choice(question.candidate, foresee, question.counts(), room.free)
    levels = question.levels()
    choice.look(levels, further=options.fastest)
    if choice.chosen is None:
        choice.look_for_least(levels)
    rows = [*_reference(question, choice), *choice.rows]
    _print(["", *console.table(rows, choice.chosen, question.costs.exact), "", *console.left_out_lines(question)])
    found = [] if choice.chosen else list(advice(question, choice))
    _print(console.chosen_lines(choice.chosen) if choice.chosen else console.nothing_lines(choice, found))
    folder.mkdir(parents=True, exist_ok=True)
    content = _content(question, rows, choice, found)
    write_json(folder / "fit.json", content)
    files = [folder / "fit.json", *draw(rows, choice.chosen, room, folder / "fit.png")]
    _print([f"files: {', '.join(map(str, files))}"])
    if choice.chosen is None:
        return 1
    code = _verify(choice.chosen, folder, content) if options.verify else 0
    return _time(choice.promising(), folder, content) or code if options.fastest else code


def ask(options: Namespace, extra: Sequence[str]) -> Question:
    """The question that these flags ask.

    Raises:
        SettingsError: with all that is wrong with them.
    """
    errors: list[str] = []
    if options.num_processes < 1:
        errors.append(f"--num_processes {options.num_processes}: must be at least 1")
    room = find_room(options.memory, options.gpu, options.reserve, options.num_processes, errors)
    for name in ("verify", "fastest"):
        if getattr(options, name) and room and not room.here:
            errors.append(f"--{name} runs on this machine, which has no GPU; drop it, or --gpu {options.gpu}")
    if errors:
        raise SettingsError(errors)
    return Question(extra, options.num_processes, room)


def _reference(question: Question, choice: Choice) -> list[Row]:
    """Nothing turned on, unless it is the first candidate anyway, or fp32 cannot be had here."""
    try:
        plain = choice.see(question.candidate(question.reference(), question.counts()[0]))
    except SettingsError:
        return []
    return [] if plain.candidate.name in [row.candidate.name for row in choice.rows] else [plain]


def _verify(row: Row, folder: Path, content: dict[str, Any]) -> int:
    """Runs the choice and shows forecast against measured; 1 if it failed or took more than there is."""
    print("\nruns it for three steps", flush=True)
    [result] = trial.run([row], folder / "verify", trial.MEMORY_STEPS)
    if result["status"] != "ok":
        _print([f"{result['status']}: {result['reason']}"])
        return 1
    measured = trial.compare(row, result)
    _print(console.measured_lines(row, measured))
    content["verified"] = [dataclasses.asdict(figure) | {"error_percent": figure.error} for figure in measured]
    write_json(folder / "fit.json", content)
    return int(measured[0].measured > row.free)


def _time(rows: Sequence[Row], folder: Path, content: dict[str, Any]) -> int:
    """Runs the promising ones in turns and names the fastest; 1 if one of them failed, or none has a speed."""
    print(f"\nruns {len(rows)} in {trial.ROUNDS} rounds, {trial.TIMED_STEPS['max_steps']} steps each", flush=True)
    results = list(trial.run(rows, folder / "fastest", trial.TIMED_STEPS, trial.ROUNDS))
    failed = [
        f"{result['name']}: {result['status']}: {result['reason']}" for result in results if result["status"] != "ok"
    ]
    found = trial.fastest(folder / "fastest")
    _print(["", *failed, *console.fastest_lines(found, rows)])
    content["fastest"] = trial.figures(folder / "fastest", found)
    write_json(folder / "fit.json", content)
    return int(bool(failed) or found is None)


def _content(question: Question, rows: Sequence[Row], choice: Choice, found: Sequence[Advice]) -> dict[str, Any]:
    """`fit.json`: sizes in MiB, shares of the model's FLOPs."""
    room = question.room
    return {
        "schema": 1,
        "settings": question.base.as_dict(),
        "memory": dataclasses.asdict(room) | {"free": room.free},
        "extra_flops_exact": question.costs.exact,
        "left_out": question.left_out,
        "candidates": [_row(row) for row in rows],
        "chosen": choice.chosen.candidate.name if choice.chosen else None,
        "advice": [{"change": one.words, **_row(one.row)} for one in found],
    }


def _row(row: Row) -> dict[str, Any]:
    settings = row.candidate.settings
    return {
        "name": row.candidate.name,
        "command": shlex.join(row.candidate.rung().command()),
        "micro_batches": settings.gradient_accumulation_steps,
        "micro_batch_size": settings.micro_batch_size,
        "extra_flops": row.candidate.level.share,
        "changes": row.candidate.level.changes,
        "peak_mib": row.forecast.peak_mib if row.forecast else None,
        **{f"{owner}_mib": size for owner, size in (row.forecast.owners if row.forecast else {}).items()},
        "reason": row.reason,
        "fits": row.fits,
    }


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)
