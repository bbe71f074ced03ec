"""Keeps secrets out of printed text, recognised by the name of their variable or option, or in an address. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

MASK = "***"

_SECRET = re.compile(
    r"(key|keys|token|tokens|secret|secrets|password|passwords|passwd|passphrase|credential|credentials"
    r"|(^|[^a-z0-9])auth(orization)?|(^|[^a-z0-9])bearer)($|[^a-z0-9])"
)
_ADDRESS = re.compile(r"(://[^/@:\s]*:)[^/@\s]+@")
# NAME=VALUE, and "NAME": VALUE as in JSON and in Python's dictionaries. The lookbehind keeps the search linear in a
# long word: the pattern is tried at the beginning of the word only.
_NAMED = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*)(=|["']\s*:\s*)("[^"\n]*"|'[^'\n]*'|[^\s"',;&)}]+)""")
_OPTION = re.compile(r"(?<![\w.-])(--[\w.-]+)([ \t]+)(\S+)")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}")
_SHORTEST = 4  # characters; a shorter value is a part of too many unrelated words


def is_secret(name: str) -> bool:
    """Return whether a variable or option called `name` is likely to hold a secret: API_KEY, --hf-token, dbPassword."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return _SECRET.search(words) is not None


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env` with every secret value masked."""
    return {name: MASK if value and is_secret(name) else _mask_addresses(value) for name, value in env.items()}


def masked_args(args: Sequence[str]) -> list[str]:
    """Return a copy of `args` with masked values in `--api-key=VALUE`, `--api-key VALUE` and `api.key=VALUE`."""
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
            masked.append(_mask_addresses(arg))
            secret_next = arg.startswith("-") and not equals and is_secret(arg)
    return masked


def secret_values(env: Mapping[str, str], args: Sequence[str]) -> frozenset[str]:
    """Return the values that `masked_env` and `masked_args` would mask, and that no other text may contain either."""
    found = {value for name, value in env.items() if is_secret(name)}
    for arg, masked in zip(args, masked_args(args), strict=True):
        if masked == MASK:
            found.add(arg)
        elif masked.endswith(f"={MASK}"):
            found.add(arg.partition("=")[2])
    return frozenset(value for value in found if len(value) >= _SHORTEST)


def masked_text(text: str, secrets: Collection[str] = ()) -> str:
    """Mask the `secrets` in `text`, the values after names of secrets, bearer tokens, and passwords in addresses."""
    for secret in sorted(secrets, key=len, reverse=True):  # longest first, as one secret may contain another
        text = text.replace(secret, MASK)

    def mask_value(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}{MASK}" if is_secret(match[1]) else match[0]

    text = _BEARER.sub(rf"\g<1>{MASK}", _NAMED.sub(mask_value, text))
    return _mask_addresses(_OPTION.sub(mask_value, text))


def _mask_addresses(text: str) -> str:
    """Mask the password in every address of the form `scheme://user:password@host`."""
    return _ADDRESS.sub(rf"\g<1>{MASK}@", text)
