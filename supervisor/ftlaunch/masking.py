"""Keeps secrets out of what is printed: by the name they stand under, and in addresses with a password."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"

_SECRET = re.compile(
    r"(key|keys|token|tokens|secret|secrets|password|passwords|passwd|passphrase|credential|credentials"
    r"|(^|[^a-z0-9])auth(orization)?|(^|[^a-z0-9])bearer)($|[^a-z0-9])"
)
_ADDRESS = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Whether a variable or option so named is likely to hold a secret: API_KEY, --hf-token, dbPassword."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return _SECRET.search(words) is not None


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with every secret value masked."""
    return {name: MASK if value and is_secret(name) else _masked_text(value) for name, value in env.items()}


def masked_args(args: Sequence[str]) -> list[str]:
    """`args` with masked values: of `--api-key=VALUE`, of `--api-key VALUE` and of `api.key=VALUE`."""
    masked: list[str] = []
    secret_next = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if secret_next and not arg.startswith("--"):
            masked.append(MASK)
            secret_next = False
        elif equals and is_secret(name):
            masked.append(f"{name}={MASK if value else ''}")
            secret_next = False
        else:
            masked.append(_masked_text(arg))
            secret_next = arg.startswith("-") and not equals and is_secret(arg)
    return masked


def _masked_text(text: str) -> str:
    return _ADDRESS.sub(rf"\g<1>{MASK}@", text)
