"""What a person sees: settings and where they came from, progress, and a summary."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..loop import Step
from ..metrics.throughput import LEAST_TIMED_STEPS
from ..report.profiles import LABELS
from ..settings.fields import FIELDS, OWN, Settings
from .activation_lines import activation_lines

WIDTH = 100
# A log file gets about this many lines of progress, whatever the number of steps.
PROGRESS_LINES = 10
# Of a kind, in the summary of a run; its result file has all.
REASONS = 3
# Letters of the first row, about a line.
FIRST_ROW = 80
# Of a step's time, in the summary of a run.
LEAST_SHARE = 0.005
EMPTY = "  (skipped: no token in its window carries a loss)"


def settings_block(
    settings: Settings, environment: dict[str, Any], data: dict[str, Any] | None = None, first_row: str | None = None
) -> str:
    """Every resolved setting: those somebody chose with their origin, the defaults in one paragraph; and the data.

    Args:
        settings: the run's.
        environment: what `describe` says of where it runs.
        data: what its rows were made of, as it is recorded.
        first_row: the first row to train on, as text; shown shortened.
    """
    values = settings.as_dict()
    origins = {name: origin for name, origin in settings.origins.items() if name in FIELDS}
    chosen = {name: origin for name, origin in origins.items() if origin not in ("default", OWN)}
    own = ", ".join(name for name, origin in origins.items() if origin == OWN)
    lines = [
        f"Run {settings.run_name} on {environment['device_name']} ({environment['device']}, "
        f"{environment['threads']} threads), torch {environment['torch']}"
    ]
    for name in (name for name in FIELDS if name in chosen):
        lines.append(f"  {name:<29} {_text(values[name]):<28} {chosen[name]}")
    defaults = ", ".join(
        f"{name} {_text(values[name])}" for name in FIELDS if name not in chosen and origins.get(name) != OWN
    )
    for text in (f"defaults: {defaults}", f"{OWN}: {own}" if own else ""):
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    if settings.precision != "no":
        lines.append(f"  {_products(settings.precision, environment)}")
    for part, report in (data or {}).items():
        lines += textwrap.wrap(
            f"{part}: {_data(report)}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    if first_row is not None:
        shown = first_row if len(first_row) <= FIRST_ROW else f"{first_row[:FIRST_ROW]}..."
        lines.append(f"  first row: {json.dumps(shown, ensure_ascii=False)}")
    return "\n".join(lines)


def _products(precision: str, environment: dict[str, Any]) -> str:
    """How fast products in half precision are beside those in fp32, and whose kernels compute them."""
    own, fp32 = (environment["matmul_gflops"][name] for name in (precision, "fp32"))
    blocks = environment["matmul_kernels"].get(precision) == "rungwise"
    how = ", computed in fp32 and rounded" if blocks else ""
    slower = f"; they are slower in {precision} here" if own < fp32 else ""
    return f"Matrix products: {own:,.0f} GFLOP/s in {precision}{how}; {fp32:,.0f} in fp32{slower}"


def _data(report: dict[str, Any]) -> str:
    """What the rows of a run were made of, in words."""
    parts = [report["source"]]
    if report.get("reader"):
        parts.append(f"read as {report['reader']}")
    if report.get("column"):
        others = [name for name in report["columns"] if name != report["column"]]
        parts.append(f"column {report['column']}" + (f" (not {', '.join(others)})" if others else ""))
    if "texts" in report:
        without = [f"{report[kind]:,} {kind}" for kind in ("empty", "missing") if report[kind]]
        parts.append(
            f"{report['texts']:,} text{'s' * (report['texts'] != 1)}" + (f" ({', '.join(without)})" if without else "")
        )
        parts.append(f"{report['tokens']:,} tokens")
    if report.get("end_of_text"):
        parts.append(f"{report['end_of_text']} behind each document")
    parts.append("rows as they are read" if report["rows"] is None else f"{report['rows']:,} rows")
    parts += [f"dropped: {count:,} {why}" for why, count in report.get("dropped", {}).items()]
    return "; ".join(parts)


class Progress:
    """A bar on a terminal, plain lines elsewhere."""

    def __init__(self, max_steps: int, stream: Any = None):
        self.stream = stream or sys.stderr
        self.max_steps = max_steps
        self.every = max(1, max_steps // PROGRESS_LINES)
        self.bar = tqdm(total=max_steps, unit="step", file=self.stream) if self.stream.isatty() else None

    def show(self, step: Step) -> None:
        """Shows one finished step."""
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {step.loss:.3f}", refresh=False)
            if not step.tokens:
                self.bar.write(f"step {step.number}{EMPTY}", file=self.stream)
            self.bar.update()
        elif step.number % self.every == 0 or step.number in (1, self.max_steps) or not step.tokens:
            note = "" if step.timed else "  (not timed)"
            note = "  (skipped: fp16 overflow)" if step.skipped else note
            note = note if step.tokens else EMPTY
            text = f"step {step.number:>{len(str(self.max_steps))}}/{self.max_steps}  loss {step.loss:.4f}"
            print(f"{text}  {1000 * step.seconds:,.0f} ms{note}", file=self.stream, flush=True)

    def show_evaluation(self, step: int, loss: float) -> None:
        """Shows the loss of held-out rows."""
        line = f"  held-out loss after step {step}: {loss:.4f}"
        if self.bar is not None:
            self.bar.write(line, file=self.stream)
        else:
            print(line, file=self.stream, flush=True)

    def resume(self, done: int) -> None:
        """Starts after the steps that a checkpoint has behind it."""
        print(f"  goes on after step {done}", file=self.stream, flush=True)
        if self.bar is not None:
            self.bar.update(done)

    def close(self) -> None:
        """Ends the bar."""
        if self.bar is not None:
            self.bar.close()


def summary_block(result: dict[str, Any], where: list[str]) -> str:
    """The end of a run as a person reads it."""
    lines = [f"{result['name']}: {result['status']}" + (f" - {result['reason']}" if result["reason"] else "")]
    memory, speed, loss = result["memory"], result["throughput"], result["loss"]
    whose = " after resuming" if speed["restored_steps"] else ""
    if memory.get("peak_allocated_mib") is not None:
        owners = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
        owned = ", ".join(f"{owner.replace('_', ' ')} {memory[f'{owner}_mib']:,.1f}" for owner in owners)
        lines += _row("peak memory", f"{memory['peak_allocated_mib']:,.1f} MiB: {owned}")
        if memory.get("peak_allocated_sum_mib") is not None:
            lines += _row("", f"of the largest process; {memory['peak_allocated_sum_mib']:,.1f} MiB in all of them")
    if result["forecast"]:
        lines += _forecast_rows(result["forecast"])
    for n, line in enumerate(activation_lines(result["activations"], WIDTH - len(_row("", "")[0]))):
        lines += _row("" if n else "activations", line)
    if speed.get("tokens_per_second"):
        lines += _row(
            "speed",
            f"{speed['tokens_per_second']:,.0f} tokens/s; a step {speed['step_ms_median']:,.1f} ms "
            f"(p10 {speed['step_ms_p10']:,.1f}, p90 {speed['step_ms_p90']:,.1f}, "
            f"{speed['timed_steps']} timed steps{whose})",
        )
        if speed["disturbed"]:
            lines += _row(
                "", f"disturbed: {speed['disturbed']}; run it again on a quiet machine before you compare it"
            )
    elif result["status"] == "ok":
        text = f"not claimed: {speed['timed_steps']} timed steps{whose}, {LEAST_TIMED_STEPS} are needed"
        lines += _row("speed", text)
    if result["profile"] and result["status"] == "ok":
        lines += _profile_rows(result["profile"])
    if result["compile"]:
        lines += _compile_rows(result["compile"])
    if result["amp"]:
        lines += _row(
            "fp16", f"loss scale {result['amp']['loss_scale']:,.0f}, {result['amp']['skipped_steps']} steps skipped"
        )
    if loss.get("first") is not None:
        first = loss.get("first_step", 1)
        last = first + len(loss["trajectory"]) - 1
        lines += _row("loss", f"{loss['first']:.4f} at step {first}, {loss['last']:.4f} at step {last}")
    if loss.get("empty_windows"):
        lines += _row("", f"{loss['empty_windows']} steps skipped: no token in their windows carries a loss")
    if loss.get("eval"):
        last = loss["eval"][-1]
        lines += _row("held-out", f"loss {last['loss']:.4f} after step {last['step']}")
    for name, why in result["not_measured"].items():
        lines += _row("not measured", f"{name.replace('_', ' ')}: {why}")
    lines += _row("files", str(Path(result["settings"]["output_dir"]) / "result.json"))
    for line in where:
        lines += _row("tracker", line)
    return "\n".join(lines)


def _forecast_rows(forecast: dict[str, Any]) -> list[str]:
    """What the memory was to be, and how far that is from what was measured."""
    peak, error = forecast["peak_allocated_mib"], forecast.get("peak_allocated_error_percent")
    if peak is None:
        return _row("forecast", f"not known: {forecast['reason']}")
    far = "" if error is None else f", {error:+.2f}% of what was measured"
    note = f" ({forecast['note']})" if forecast["note"] else ""
    return _row("forecast", f"{peak:,.1f} MiB for {forecast['of']}{far}{note}")


def _profile_rows(profile: dict[str, Any]) -> list[str]:
    """Where a step's time went, the largest share first and what is left last."""
    if profile["step_ms"] is None:
        return _row("profile", f"not known: {profile['reason']}")
    spent = {LABELS[name]: profile[f"{name}_ms"] / profile["step_ms"] for name in LABELS}
    rest = spent.pop(LABELS["rest"])
    known = sorted((share, name) for name, share in spent.items() if share >= LEAST_SHARE)[::-1]
    shares = ", ".join(f"{name} {share:.0%}" for share, name in [*known, (rest, LABELS["rest"])])
    first, *more = textwrap.wrap(f"of an untimed step: {shares}", WIDTH - len(_row("", "")[0]))
    return _row("profile", first) + [line for part in more for line in _row("", part)]


def _compile_rows(compiled: dict[str, Any]) -> list[str]:
    counts = ((compiled["graphs"], "graph"), (compiled["graph_breaks"], "graph break"))
    counts += ((compiled["recompiles"], "recompile"),)
    words = ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts)
    lines = _row("compile", f"{compiled['seconds']:,.1f} s ({compiled['cache']} cache), {words}")
    for kind in ("graph_break", "recompile"):
        for reason in compiled[f"{kind}_reasons"][:REASONS]:
            lines += _row("", f"{kind.replace('_', ' ')}: {reason}")
    if compiled.get("break_even"):
        even = compiled["break_even"]
        lines += _row("break-even", f"{even['verdict']}, against {even['against']}")
    return lines


def _row(name: str, text: str) -> list[str]:
    return [f"  {name:<12} {text}"]


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
