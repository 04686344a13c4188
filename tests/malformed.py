"""Calls that are wrong, drawn from what the fields, the Accelerate keys and the ladder's flags say of themselves.

A field, a key or a choice that is new is among them by itself. What is drawn is a fault for certain.
"""

import bz2
import copy
import functools
import gzip
import json
import lzma
import pickle
from collections.abc import Sequence
from typing import Any

from rungwise.settings.accelerate_keys import DISTRIBUTED_TYPES, DYNAMO_KEYS, FSDP_VALUES, KEYS, PRECISIONS
from rungwise.settings.cli import LARGEST, plain_type
from rungwise.settings.fields import FIELDS, HINTS
from rungwise.settings.parse import parse

import yaml
from harness import TINY
from hypothesis import strategies as st

FLAGS = {name: field for name, field in FIELDS.items() if field.metadata["group"]}
KINDS = {name: plain_type(HINTS[name]) for name in FLAGS}
FP32 = "accelerate_configs/fp32.yaml"
GOOD = ["--config", FP32, *TINY]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
LONG = st.sampled_from(["a" * 256, "b/" * 512, "é" * 200, "c" * 5000])


def typed(name: str, value: Any) -> list[str]:
    """A flag as it is typed; a value that looks like a flag is one."""
    return [f"--{name}={value}"]


def value_faults(name: str) -> list[st.SearchStrategy[list[str]]]:
    """Strategies of a flag with a value that it cannot have."""
    known, kind = FLAGS[name].metadata, KINDS[name]
    found = [st.just([f"--{name}="])]
    if kind is not bool:
        found.append(st.just([f"--{name}"]))
    if kind is bool:
        found.append(st.text(min_size=1).filter(lambda text: text.lower() not in ("true", "false")))
    elif kind in (int, float):
        found.append(st.text(min_size=1).filter(lambda text: not _is_number(kind, text)))
        most = LARGEST if known["most"] is None and kind is int else known["most"]
        if known["least"] is not None:
            found.append(_numbers(kind, None, known["least"]))
        if most is not None:
            found.append(_numbers(kind, most, None))
        if kind is float:
            found.append(st.sampled_from(["nan", "inf", "-inf"]))
    elif kind is dict:
        found.append(JSON.filter(lambda value: not isinstance(value, dict)).map(json.dumps))
        found.append(st.dictionaries(st.text(max_size=6), JSON, min_size=1, max_size=2).map(json.dumps))
        found.append(st.sampled_from(["[" * 50_000, '{"a":' * 20_000, "{", "{'a': 1}", '{"a": NaN']))
    elif known["choices"]:
        found.append(st.text(min_size=1).filter(lambda text: text not in known["choices"]))
    else:
        found.append(st.sampled_from(["a\0b", "\udcff.txt", "\ud800"]))
        if not known["many"]:
            found.append(LONG)
    return [each.map(lambda value: value if isinstance(value, list) else typed(name, value)) for each in found]


def _is_number(kind: type, text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _numbers(kind: type, above: float | None, below: float | None) -> st.SearchStrategy[Any]:
    """Numbers beyond a bound, which is none of them."""
    if kind is int:
        return st.integers(None if above is None else above + 1, None if below is None else below - 1)
    exclude = {"exclude_min": above is not None, "exclude_max": below is not None}
    return st.floats(above, below, allow_nan=False, allow_infinity=False, **exclude)


def legal(name: str) -> st.SearchStrategy[Any]:
    """Values that the flag may have by itself; a name may be one of nothing that there is."""
    known, kind = FLAGS[name].metadata, KINDS[name]
    if known["choices"]:
        return st.sampled_from(known["choices"])
    if kind is bool:
        return st.sampled_from(["true", "false"])
    if kind is dict:
        return st.sampled_from(['{"use_reentrant": true}', '{"every_n_layers": 2}', "{}"])
    if kind is int:
        least = known["least"] or 0
        return st.integers(least, min(known["most"] or LARGEST, least + 64))
    if kind is float:
        return st.floats(known["least"], known["most"] or 10.0)
    return st.sampled_from(["gpt2", "none-such", "a/b", "a=1", "x,y"])


def _lacks(name: str) -> bool:
    """Whether a value of the flag, given to a good call alone, lacks what it needs."""
    for value in {bool: ["true", "false"], int: [str(FLAGS[name].metadata["least"])]}.get(
        KINDS[name], ["x", "0.5", "{}"]
    ):
        found = parse([*GOOD, *typed(name, value)], {})[1]
        if any(f"--{name} has no effect" in line for line in found):
            return True
    return False


IDLE = sorted(name for name in FLAGS if FLAGS[name].metadata["needs"] and _lacks(name))


@st.composite
def idle_flags(draw: st.DrawFn) -> tuple[list[str], str]:
    """A flag without what it needs, and its name."""
    name = draw(st.sampled_from(IDLE))
    found = draw(legal(name).filter(lambda value: _said(name, value)))
    return typed(name, found), name


def _said(name: str, value: Any) -> bool:
    return any(f"--{name} has no effect" in line for line in parse([*GOOD, *typed(name, value)], {})[1])


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[list[str], str]:
    """A flag that there is not: one letter less or more, an abbreviation, another case, or a single dash."""
    name = draw(st.sampled_from(sorted(FLAGS)))
    place = draw(st.integers(0, len(name) - 1))
    made = draw(st.sampled_from([name[:place] + name[place + 1 :], name + "x", name[: place + 1], name.upper()]))
    if made in (*FLAGS, "help", "h", "") or set(made) <= {"-"}:
        made = f"{name}_"
    return typed(made, "1"), f"--{made}"


@st.composite
def bad_flags(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """The flags of a call with one to three faults among flags that are none, and what the message must name."""
    names = draw(st.lists(st.sampled_from(sorted(FLAGS)), min_size=1, max_size=3, unique=True))
    faults = [(draw(st.one_of(value_faults(name))), f"--{name}") for name in names]
    if draw(st.booleans()):
        faults = [draw(misspelt())]
    others = draw(st.lists(st.sampled_from(sorted({*FLAGS} - {*names, "config"})), max_size=3, unique=True))
    beside = [word for name in others for word in typed(name, draw(legal(name)))]
    return [*GOOD, *beside, *(word for words, _ in faults for word in words)], [name for _, name in faults]


# What a key of each kind must not hold.
NOT_OF = {
    str: st.one_of(st.integers(), st.booleans(), st.just([1]), st.just({"a": 1})),
    int: st.one_of(st.text(min_size=1), st.just(1.5), st.booleans(), st.just([1])),
    bool: st.one_of(st.text(min_size=1), st.integers(2), st.just([1])),
    dict: st.one_of(st.text(min_size=1), st.integers(1), st.just([1])),
    list: st.one_of(st.text(min_size=1), st.integers(1), st.just({"a": 1})),
}
TEXT = st.text(min_size=1, max_size=12)
NOT_TOLD = {"false", "no", "NO", "off", "n", "N"}
TYPED = sorted(name for name, key in KEYS.items() if key.kind in NOT_OF and (key.read or not key.launcher))
# Keys that have no recipe here, with a value of their kind that asks for something.
ASKING = {str: "x", int: 3, bool: True, dict: {"a": 1}, list: ["a"], object: "yes"}
NO_RECIPE = {n: k for n, k in KEYS.items() if not k.read and not k.launcher and ASKING[k.kind] not in k.off}
# Of keys that are read, values of the right kind that there are not.
WRONG: dict[str, st.SearchStrategy[Any]] = {
    "compute_environment": TEXT.filter(lambda text: text != "LOCAL_MACHINE"),
    "distributed_type": TEXT.filter(lambda text: text not in DISTRIBUTED_TYPES),
    "mixed_precision": TEXT.filter(lambda text: text not in PRECISIONS),
    "num_processes": st.integers().filter(lambda number: number != 1),
    "gradient_accumulation_steps": st.one_of(st.integers(max_value=0), st.integers(17), st.just(3)),
    "deepspeed_config": st.dictionaries(TEXT, JSON, min_size=1, max_size=2),
    "fsdp_config": st.dictionaries(TEXT.map("fsdp_{}".format), st.integers(), min_size=1, max_size=2),
    "dynamo_config": st.one_of(
        st.dictionaries(TEXT.filter(lambda text: text not in DYNAMO_KEYS), st.integers(), min_size=1, max_size=2),
        st.sampled_from(DYNAMO_KEYS).map(lambda key: {key: 7}),
    ),
}


@st.composite
def bad_keys(draw: st.DrawFn) -> dict[str, Any]:
    """An Accelerate file with one to three faults in its keys."""
    content: dict[str, Any] = {"distributed_type": "NO", "mixed_precision": draw(st.sampled_from(PRECISIONS))}
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["kind", "recipe", "value", "unknown", "sharding"]))
        if kind == "kind":
            name = draw(st.sampled_from(TYPED))
            content[name] = draw(NOT_OF[KEYS[name].kind])
        elif kind == "recipe":
            name = draw(st.sampled_from(sorted(NO_RECIPE)))
            content[name] = ASKING[KEYS[name].kind]
        elif kind == "value":
            name = draw(st.sampled_from(sorted(WRONG)))
            content[name] = draw(WRONG[name])
        elif kind == "sharding":
            key = draw(st.sampled_from(sorted(FSDP_VALUES)))
            wrong = JSON.filter(functools.partial(_is_none_of, FSDP_VALUES[key]))
            content |= {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, f"fsdp_{key}": draw(wrong)}}
        else:
            content[draw(TEXT.map("key_{}".format))] = draw(JSON)
    return content


def _is_none_of(known: tuple[Any, ...], value: Any) -> bool:
    """Whether a value says something, and not one of these."""
    same = value.upper() if isinstance(value, str) else value
    return value is not None and not any(type(same) is type(one) and same == one for one in known)


# Files that are no YAML, or none that a person has written.
BROKEN_YAML = (
    b"",
    b"null",
    b"- a\n- b\n",
    b"5",
    b"a: b: c",
    b"key: [1, 2",
    b"\tmixed_precision: bf16",
    b"mixed_precision: 'no",
    b"\xff\xfe\x00",
    b"\x80\x81",
    b"mixed_precision: no\n",
    b"mixed_precision: ''\ndistributed_type: 1\n",
    b"when: 2001-13-45\n",
    b"when: 2001-01-01\n",
    b"? [a]\n: b\n",
    b"? {a: 1}\n: b\n",
    b"<<: 3\n",
    b"a: &a [*a]\n",
    b"a: *b\n",
    b"a: !!binary x\n",
    b"a: !!int x\n",
    b"a: !!float x\n",
    b"a: !!set {b, c}\n",
    b"a: !!python/object/apply:os.system [touch made]\n",
    b"!!python/object/new:subprocess.Popen [[touch, made]]\n",
    b"a: %s\n" % (b"9" * 5000),
    b"[" * 20_000,
    b"{a: " * 5_000,
    b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 110)),
    b'a: "\\0"\n',
    b'fsdp_config: "\\ud800"\n',
    b"%YAML 9.9\n---\na: 1\n",
    b"--- a\n--- b\n",
)


@st.composite
def bad_files(draw: st.DrawFn) -> bytes:
    """The bytes of an Accelerate file with faults in its keys or its YAML."""
    if draw(st.integers(0, 3)):
        return yaml.safe_dump(draw(bad_keys()), allow_unicode=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return draw(st.sampled_from(BROKEN_YAML))


OWN_FLAGS = ("run_name", "group", "output_dir")
NOT_A_NAME = st.one_of(
    st.sampled_from(["flags", "../up", "a/b", "", " ", "-x", ".hidden", "a b", "$(touch made)"]), st.integers()
)


@st.composite
def bad_ladders(draw: st.DrawFn) -> bytes:
    """A ladder file of two rungs and more, with one to three faults."""
    if not draw(st.integers(0, 4)):
        broken = (*BROKEN_YAML, b"rungs: {}", b"rungs: [a]", b"flags: {config: x}", b"rungs: 3", b"rungs: {a: 5}")
        return draw(st.sampled_from(broken))
    shared: dict[str, Any] = {"config": FP32, "report_to": "none", "dataset_name": "synthetic"}
    rungs: dict[Any, Any] = {"a": {}, "b": {"gradient_accumulation_steps": 2}}
    content: dict[str, Any] = {"flags": shared, "rungs": rungs}
    for _ in range(draw(st.integers(1, 3))):
        flags = draw(st.sampled_from([shared, rungs["b"]]))
        kind = draw(st.sampled_from(["value", "idle", "unknown", "own", "name", "shape", "key", "config"]))
        if kind == "value":
            name = draw(st.sampled_from(sorted({*FLAGS} - {*OWN_FLAGS, *shared, *rungs["b"]})))
            words = draw(st.one_of(value_faults(name)))
            # Left empty a flag of a ladder is none, and true is one without a value.
            flags[name] = words[0].partition("=")[2] or []
        elif kind == "idle":
            # On a rung alone: what all share goes to those on which it acts.
            words, name = draw(idle_flags())
            rungs["b"][name] = words[0].partition("=")[2]
        elif kind == "unknown":
            flags[draw(misspelt())[1].removeprefix("--")] = draw(JSON)
        elif kind == "own":
            flags[draw(st.sampled_from(OWN_FLAGS))] = "x"
        elif kind == "name":
            rungs[draw(NOT_A_NAME)] = {}
        elif kind == "shape":
            rungs[draw(st.sampled_from(["c", "d"]))] = draw(st.one_of(TEXT, st.integers(1), st.just([1])))
        elif kind == "key":
            content[draw(TEXT.map("key_{}".format))] = draw(JSON)
        else:
            shared["config"] = draw(st.sampled_from([None, True, 5, "", [], "none-such.yaml", {"a": 1}, "recipes"]))
    return yaml.safe_dump(content).encode("utf-8", "surrogatepass")


def _packed(packer: Any, text: bytes) -> bytes:
    """What a compressor makes of a text, without its end."""
    return packer.compress(text)[:-4]


LINE = b'{"text": "the quick brown fox"}\n'
# Names of files, and bytes that are none such.
BROKEN_FILES: dict[str, list[bytes]] = {
    ".txt": [b"", b"a\0b" * 200, b"\xff\xfe" * 200, b"\x80 some text" * 40, b"short"],
    ".md": [b"", LINE * 20, b"PK\x03\x04" + b"x" * 200, b"Rar!\x1a\x07" + b"x" * 99],
    ".jsonl": [b"", b"\n\n\n", b"{", LINE + b"{'a': 1}\n", b"5\n" * 9, b"[" * 20_000, b"null\n", b'{"a": [1]}\n'],
    ".json": [b"", b"[", b"[1, 2]", b"{}", b'[{"text": {"a": 1}}]', b"5", b'[{"a": "x", "b": "y"}]' * 2],
    ".csv": [b"", b"\n", b"a,a\n1,2\n", b"text\n" + b"a,b\n" * 9, b'text\n"a', b"a;b|c\n1;2|3\n", b"a,b\nx,y\n" * 9],
    ".tsv": [b"", b"a\tb\nx\n", b"a\ta\n1\t2\n"],
    ".parquet": [b"", b"PAR1", b"PAR1" + b"x" * 400 + b"PAR1", b"text" * 99],
    ".arrow": [b"", b"ARROW1", b"\xff" * 400, b"ARROW1\0\0" + b"x" * 400],
    ".gz": [b"", b"\x1f\x8b", _packed(gzip, b"some text\n" * 200), b"\x1f\x8b" + b"x" * 99],
    ".bz2": [b"", b"BZh", _packed(bz2, b"some text\n" * 200), b"BZh9" + b"x" * 99],
    ".xz": [b"", b"\xfd7zXZ\0", _packed(lzma, b"some text\n" * 200)],
    ".jsonl.gz": [_packed(gzip, LINE * 99), gzip.compress(b"{" * 99), gzip.compress(b"")],
    ".png": [b"\x89PNG" + b"x" * 99, b"some text\n" * 99],
    ".pkl": [pickle.dumps({"text": ["a"] * 99}), b"\x80\x04\x95"],
    ".zip": [b"PK\x03\x04" + b"x" * 99],
}


@st.composite
def bad_texts(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file to train on that is none: the end of its name, and its bytes."""
    suffix = draw(st.sampled_from(sorted(BROKEN_FILES)))
    content = draw(st.sampled_from(BROKEN_FILES[suffix]))
    if suffix in (".parquet", ".arrow", ".gz", ".bz2", ".xz"):
        content += draw(st.binary(max_size=8))
    return draw(st.sampled_from([suffix, suffix.upper()])), content


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any], parts: Sequence[str] = ()) -> bytes:
    """The bytes of a JSON file that holds another kind of thing somewhere, lacks a part or its end, or is no JSON.

    With `parts` it is one of these, whole, that is another kind of thing or lacking.
    """
    if not draw(st.integers(0, 3)):
        text = json.dumps(whole)
        return draw(
            st.sampled_from(
                [
                    b"",
                    b"{",
                    b"[]",
                    b"null",
                    b"5",
                    b"\xff\xfe",
                    b"[" * 50_000,
                    text[:-1].encode(),
                    text[: len(text) // 2].encode(),
                ]
            )
        )
    content = copy.deepcopy(whole)
    place, key, inner = content, draw(st.sampled_from(sorted(parts or content))), not parts
    while inner and isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
        place = place[key]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    if draw(st.booleans()):
        del place[key]
    else:
        known = type(place[key])
        place[key] = draw(JSON.filter(lambda value: type(value) is not known))
    return json.dumps(content).encode()
