"""Reads frozen attrs classes from TOML and the environment, and says which key is wrong. What the settings are: settings.py.

A setting is an attrs field made by `setting`, a section is a field made by `section`. A table in the file fills a section, and
`MAILSVC_<SECTION>__<KEY>` replaces one key of it: text as it is, everything else written as in TOML.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs

PREFIX = "MAILSVC_"
RESERVED = (f"{PREFIX}CONFIG", f"{PREFIX}TEST_")  # the command's file, and what the tests are told

T = TypeVar("T")


class SettingsError(Exception):
    """A sentence for the operator that names the key."""


def setting(
    default: Any, help: str, *, check: Callable[[Any], str | None] | None = None, example: object = None, secret: bool = False
) -> Any:
    """A key with its default (None: it may be left out) and what it is for.

    `check` says what is wrong with a value; `example` is shown where there is no default; a secret is never shown.
    """
    metadata = {"help": help, "check": check, "example": example, "secret": secret}
    return attrs.field(default=types.MappingProxyType(default) if isinstance(default, dict) else default, metadata=metadata)


def section(factory: type, help: str) -> Any:
    """A table of keys."""
    return attrs.field(factory=factory, metadata={"help": help, "section": factory})


def read(path: Path) -> dict[str, Any]:
    """The file as nested dictionaries."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"The settings file {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file {path} is not TOML: {error}.") from None


def build(cls: type[T], given: Mapping[str, Any], environ: Mapping[str, str], moved: Mapping[str, str] = types.MappingProxyType({})) -> T:
    """An instance of `cls` from `given`, with the overrides of `environ` on top. `moved`: former keys, and what they are called now."""
    for old, new in moved.items():
        table, _, key = old.rpartition(".")
        name = variable(table, key)
        if name in environ:
            raise SettingsError(f"The environment variable {name} is {variable(*new.split('.'))} now.")
        if isinstance(given.get(table), Mapping) and key in given[table]:
            raise SettingsError(f"The setting {old} is {new} now.")
    return _table(cls, _overlaid(cls, given, environ), "")


def variable(table: str, key: str) -> str:
    """The environment variable of a key."""
    return PREFIX + (f"{table}__{key}" if table else key).upper()


def keys(cls: type) -> Iterator[tuple[str, str, attrs.Attribute[Any]]]:
    """Every setting as (section or "", key, field), in the order of the classes."""
    for field in attrs.fields(cls):
        if inner := field.metadata.get("section"):
            for _, key, leaf in keys(inner):
                yield field.name, key, leaf
        else:
            yield "", field.name, field


def _overlaid(cls: type, given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in given.items()}
    places = {variable(table, key): (table, key) for table, key, _ in keys(cls)}
    sections = {field.name: field.metadata["section"] for field in attrs.fields(cls) if "section" in field.metadata}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(RESERVED):
            continue
        if name not in places:
            raise SettingsError(f"The environment variable {name} belongs to no setting.")
        table, key = places[name]
        hint = get_type_hints(sections[table] if table else cls)[key]
        target = result.setdefault(table, {}) if table else result
        if isinstance(target, dict):  # else _table says what is wrong with it
            target[key] = _from_text(environ[name], hint, name)
    return result


def _from_text(text: str, hint: Any, name: str) -> Any:
    if str in _alternatives(hint) or Path in _alternatives(hint):
        return text
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        value = {}
    if set(value) != {"value"}:
        raise SettingsError(f"The environment variable {name} is {text!r}; expected {expected(hint)}, written as in TOML.")
    return value["value"]


def _table(cls: type[T], given: Mapping[str, Any], prefix: str) -> T:
    fields = {field.name: field for field in attrs.fields(cast(Any, cls))}
    hints = get_type_hints(cls)
    for key in given:
        if key not in fields:
            raise SettingsError(f"The setting {prefix}{key} does not exist. Known here: {', '.join(fields)}.")
    values = {}
    for key, value in given.items():
        where = prefix + key
        if inner := fields[key].metadata.get("section"):
            if not isinstance(value, dict):
                raise SettingsError(f"The setting {where} is {_shown(value)}; expected a table of settings.")
            values[key] = _table(inner, value, f"{where}.")
        else:
            values[key] = _leaf(value, hints[key], where, fields[key].metadata)
    return cls(**values)


def _leaf(value: Any, hint: Any, where: str, metadata: Mapping[Any, Any]) -> Any:
    try:
        result = _value(value, hint, where)
    except SettingsError:
        if metadata["secret"]:
            raise SettingsError(f"The setting {where} is not {expected(hint)}.") from None
        raise
    if metadata["check"] is not None and (wrong := metadata["check"](result)):
        raise SettingsError(f"The setting {where} is {_shown(value)}; {wrong}.")
    return result


def _value(value: Any, hint: Any, where: str) -> Any:
    for kind in _alternatives(hint):
        origin, inner = get_origin(kind) or kind, get_args(kind)
        if origin is tuple and isinstance(value, list):
            return tuple(_value(item, inner[0], f"{where}[{index}]") for index, item in enumerate(value))
        if origin is Mapping and isinstance(value, dict):
            return types.MappingProxyType({key: _value(item, inner[1], f'{where}."{key}"') for key, item in value.items()})
        if origin is Path and isinstance(value, str) and value:
            return Path(value).expanduser().absolute()
        if origin is float and type(value) in (int, float):
            return float(value)
        if type(value) is origin:  # a bool is no int here
            return value
    raise SettingsError(f"The setting {where} is {_shown(value)}; expected {expected(hint)}.")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return tuple(a for a in get_args(hint) if a is not type(None)) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def expected(hint: Any) -> str:
    """A type in words."""
    kind = _alternatives(hint)[0]
    if get_origin(kind) is tuple:
        return f"a list, each item {expected(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        return f"a table, each value {expected(get_args(kind)[1])}"
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}[kind]


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return repr(value)
