"""What is recorded tells no secret: no key, no password in an address, and of a person's home folder no name."""

import os
import re
from pathlib import Path
from typing import Any

HIDDEN = "***"
# Variables of the environment whose values are secrets, by words of their names; shorter values are words like `true`.
SECRET_NAMES = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
SHORTEST = 8
# By what a secret stands behind, or is: the user of an address, a parameter of one, a key of a service that marks its
# keys, the folder of somebody at home. Group 1 stays.
PATTERNS = (
    re.compile(r"(://)[^/@\s]+(?=@)"),
    re.compile(r"([?&;][\w.-]*(?:key|token|secret|password|signature|credential)[\w.-]*=)[^&;#\s]+", re.IGNORECASE),
    re.compile(r"()\b(?:hf_|sk-|ghp_|gho_|glpat-|github_pat_|wandb_v1_)[A-Za-z0-9_-]{20,}|\bAKIA[A-Z0-9]{16}\b"),
    re.compile(r"((?<![\w.~-])/(?:home|Users)/)[^/\s:;,'\"]+"),
)


def redacted(value: Any) -> Any:
    """`value` as it is recorded: in all its texts *** stands for a secret, and ~ for the folder of this person.

    Args:
        value: a text, or mappings and lists of any depth; of what else there is nothing is changed.
    """
    secrets = [text for name, text in os.environ.items() if SECRET_NAMES.search(name) and len(text) >= SHORTEST]
    home = str(Path.home())
    # The longest first: one secret may begin another.
    return _redacted(value, sorted(secrets, key=len, reverse=True), home if home.strip("/") else None)


def _redacted(value: Any, secrets: list[str], home: str | None) -> Any:
    if isinstance(value, dict):
        return {_redacted(key, secrets, home): _redacted(item, secrets, home) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, secrets, home) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    if home:
        value = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", value)
    for pattern in PATTERNS:
        value = pattern.sub(lambda found: f"{found[1] or ''}{HIDDEN}", value)
    return value
