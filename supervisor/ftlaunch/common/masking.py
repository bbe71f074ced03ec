"""Keeps secrets out of what is printed: by the name they stand under, and in addresses with a password."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

MASK = "***"

_SECRET = re.compile(
    r"(key|keys|token|tokens|secret|secrets|password|passwords|passwd|passphrase|credential|credentials"
    r"|(^|[^a-z0-9])auth(orization)?|(^|[^a-z0-9])bearer)($|[^a-z0-9])"
)
_ADDRESS = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")
# NAME=VALUE, and "NAME": VALUE as JSON and Python's dictionaries have it. What looks back keeps the search linear in
# a long word: it is tried from the word's beginning only.
_NAMED = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*)(=|["']\s*:\s*)("[^"\n]*"|'[^'\n]*'|[^\s"',;&)}]+)""")
_OPTION = re.compile(r"(?<![\w.-])(--[\w.-]+)([ \t]+)(\S+)")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}")
_SHORTEST = 4  # a shorter value stands in too many words that have nothing to do with it


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


def secret_values(env: Mapping[str, str], args: Sequence[str]) -> frozenset[str]:
    """The values that `masked_env` and `masked_args` would mask: what no text may repeat."""
    found = {value for name, value in env.items() if is_secret(name)}
    for arg, masked in zip(args, masked_args(args), strict=True):
        if masked == MASK:
            found.add(arg)
        elif masked.endswith(f"={MASK}"):
            found.add(arg.partition("=")[2])
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def masked_text(text: str, secrets: Collection[str] = ()) -> str:
    """`text` without `secrets`, and without what stands behind a secret's name or in an address."""
    for secret in sorted(secrets, key=len, reverse=True):  # one secret may hold another
        text = text.replace(secret, MASK)

    def behind(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{MASK}" if is_secret(match[1]) else match[0]

    text = _BEARER.sub(rf"\g<1>{MASK}", _NAMED.sub(behind, text))
    return _masked_text(_OPTION.sub(behind, text))


def _masked_text(text: str) -> str:
    return _ADDRESS.sub(rf"\g<1>{MASK}@", text)
