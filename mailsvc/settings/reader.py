"""Builds frozen attrs classes from TOML and the environment, and reports which key is wrong. The settings themselves: schema.py.

A setting is an attrs field made by `setting`, a section is a field made by `section`. A table in the file fills a section, and
`MAILSVC_<SECTION>__<KEY>` overrides one key of it: strings are taken as they are, other values are written as in TOML.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
from twisted.logger import Logger

from mailsvc.store.encryption.secrets import ENVIRONMENT, OLD_ENVIRONMENT

PREFIX = "MAILSVC_"
# The command line's --config, and the encryption keys (store/encryption/secrets).
RESERVED = (f"{PREFIX}CONFIG", ENVIRONMENT, OLD_ENVIRONMENT)
_TESTS = f"{PREFIX}TEST_"  # variables of the test suite

MOST = 1e9  # of a number with fractions; as seconds, 31 years: much more cannot be added to a date
MOST_WHOLE = 10**15  # of a whole number; as bytes, a petabyte: JSON and Postgres have no numbers of more than 64 bits

log = Logger()

T = TypeVar("T")


class SettingsError(Exception):
    """A message for the operator that names the key."""


def setting(
    default: Any, help: str, *, check: Callable[[Any], str | None] | None = None, example: object = None, secret: bool = False
) -> Any:
    """Defines a key with its default (None: optional) and description.

    `check` returns what is wrong with a value, or None. `example` is shown if there is no default. A secret is never shown.
    """
    metadata = {"help": help, "check": check, "example": example, "secret": secret}
    return attrs.field(default=types.MappingProxyType(default) if isinstance(default, dict) else default, metadata=metadata)


def section(factory: type, help: str) -> Any:
    """Defines a table of keys."""
    return attrs.field(factory=factory, metadata={"help": help, "section": factory})


def named_sections(factory: type, help: str) -> Any:
    """Defines tables of keys that the operator names. The environment cannot set them."""
    return attrs.field(default=types.MappingProxyType({}), metadata={"help": help, "named": factory})


def read(path: Path) -> dict[str, Any]:
    """Reads a file as nested dictionaries."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # editors of Windows begin files with a byte order mark
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"The settings file {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None


_NONE: Mapping[str, str] = types.MappingProxyType({})


def build(
    cls: type[T],
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    moved: Mapping[str, str] = _NONE,
    renamed: Mapping[str, str] = _NONE,
) -> T:
    """Returns an instance of `cls` from `given`, overridden by `environ`.

    `moved` and `renamed` map former keys to current ones: `moved` ones are refused, `renamed` ones accepted with a warning.
    """
    for old, new in moved.items():
        table, _, key = old.rpartition(".")
        name = variable(table, key)
        if name in environ:
            raise SettingsError(f"The environment variable {name} has been replaced by {variable(*new.split('.'))}.")
        if isinstance(given.get(table), Mapping) and key in given[table]:
            raise SettingsError(f"The setting {old} has been replaced by {new}.")
    for old, new in renamed.items():
        given, environ = _with_current_name(given, environ, old, new)
    return _table(cls, _overlaid(cls, given, environ), "")


def former_names(given: Mapping[str, Any], environ: Mapping[str, str], renamed: Mapping[str, str]) -> list[tuple[str, str]]:
    """The former names of settings that are in use, each with the current one: first those in the file, then environment variables."""
    places = [(old, new, *old.rpartition(".")[::2], new.rpartition(".")[2]) for old, new in renamed.items()]
    found = [(old, new) for old, new, table, key, _ in places if isinstance(given.get(table), Mapping) and key in given[table]]
    former = [(variable(table, key), variable(table, current)) for _, _, table, key, current in places]
    return [*found, *(each for each in former if each[0] in environ)]


def _with_current_name(
    given: Mapping[str, Any], environ: Mapping[str, str], old: str, new: str
) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Replaces a former key, in the same table, by the current one."""
    table, _, key = old.rpartition(".")
    current = new.rpartition(".")[2]
    former, name = variable(table, key), variable(table, current)
    if former in environ:
        if name in environ:
            raise SettingsError(f"The environment variables {former} and {name} are the same setting; remove {former}.")
        log.warn("The environment variable {old} has been renamed to {new}; rename it before the next release.", old=former, new=name)
        environ = {name if each == former else each: value for each, value in environ.items()}
    values = given.get(table)
    if isinstance(values, Mapping) and key in values:
        if current in values:
            raise SettingsError(f"The settings {old} and {new} are the same; remove {old}.")
        log.warn("The setting {old} has been renamed to {new}; rename it before the next release.", old=old, new=new)
        given = {**given, table: {current if each == key else each: value for each, value in values.items()}}
    return given, environ


def variable(table: str, key: str) -> str:
    """Returns the name of a key's environment variable."""
    return PREFIX + (f"{table}__{key}" if table else key).upper()


def keys(cls: type) -> Iterator[tuple[str, str, attrs.Attribute[Any]]]:
    """Lists every setting as (section or "", key, field), in the order of the classes, without those of `named_sections`."""
    for field in attrs.fields(cls):
        if inner := field.metadata.get("section"):
            for _, key, leaf in keys(inner):
                yield field.name, key, leaf
        elif "named" not in field.metadata:
            yield "", field.name, field


def _overlaid(cls: type, given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in given.items()}
    places = {variable(table, key): (table, key) for table, key, _ in keys(cls)}
    sections = {field.name: field.metadata["section"] for field in attrs.fields(cls) if "section" in field.metadata}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or name.startswith(_TESTS) or _of_a_service(name, environ[name]):
            continue
        if name not in places:
            raise SettingsError(f"There is no setting for the environment variable {name}.")
        table, key = places[name]
        hint = get_type_hints(sections[table] if table else cls)[key]
        target = result.setdefault(table, {}) if table else result
        if isinstance(target, dict):  # otherwise, _table reports it
            target[key] = from_text(environ[name], hint, name)
    return result


def _of_a_service(name: str, value: str) -> bool:
    """Whether Kubernetes sets it for a Service that is called mailsvc or mailsvc-…. No setting has such a name."""
    match name.split("_"):
        case [*words] if "" in words:
            return False  # it names a section
        case [*_, "SERVICE", "HOST"]:
            return True
        case [*_, "PORT", number, "TCP" | "UDP" | "SCTP"] | [*_, "PORT", number, "TCP" | "UDP" | "SCTP", "PROTO" | "PORT" | "ADDR"]:
            return number.isdigit()
        case [*_, "PORT"] if "_SERVICE_" not in name:
            return "://" in value  # a number could be meant for a setting
    return "_SERVICE_PORT_" in f"{name}_"


def from_text(text: str, hint: Any, name: str) -> Any:
    """The value of an environment variable."""
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
            raise SettingsError(f"The setting {prefix}{key} does not exist. Known settings: {', '.join(fields)}.")
    values = {}
    for key, value in given.items():
        where = prefix + key
        if inner := fields[key].metadata.get("section"):
            if not isinstance(value, dict):
                raise SettingsError(f"The setting {where} is {_shown(value)}; expected a table of settings.")
            values[key] = _table(inner, value, f"{where}.")
        elif inner := fields[key].metadata.get("named"):
            values[key] = _named_tables(inner, value, where)
        else:
            values[key] = _leaf(value, hints[key], where, fields[key].metadata)
    return cls(**values)


def _named_tables(cls: type[T], value: Any, where: str) -> Mapping[str, T]:
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        raise SettingsError(f"The setting {where} is {_shown(value)}; expected tables of settings, such as [{where}.NAME].")
    return types.MappingProxyType({name: _table(cls, each, f"{where}.{name}.") for name, each in value.items()})


def _leaf(value: Any, hint: Any, where: str, metadata: Mapping[Any, Any]) -> Any:
    try:
        result = _value(value, hint, where)
    except SettingsError:
        if metadata["secret"]:
            raise SettingsError(f"The setting {where} is not {expected(hint)}.") from None
        raise
    if metadata["secret"] and isinstance(result, str) and not result.strip():  # a token that everybody knows, or libpq's own server
        raise SettingsError(f"The setting {where} is empty; give it a value, or leave it out.")
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
            if not abs(value) <= MOST:  # infinity and what is not a number, too
                raise SettingsError(f"The setting {where} is {_shown(value)}; expected a number of at most {MOST:,.0f}.")
            return float(value)
        if type(value) is origin:  # bool is a subclass of int
            if origin is int and abs(value) > MOST_WHOLE:
                raise SettingsError(f"The setting {where} is {_shown(value)}; expected a whole number of at most {MOST_WHOLE:,}.")
            return value
    raise SettingsError(f"The setting {where} is {_shown(value)}; expected {expected(hint)}.")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return tuple(a for a in get_args(hint) if a is not type(None)) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def expected(hint: Any) -> str:
    """Names a type."""
    kind = _alternatives(hint)[0]
    if get_origin(kind) is tuple:
        return f"a list in which each item is {expected(get_args(kind)[0])}"
    if get_origin(kind) is Mapping:
        return f"a table in which each value is {expected(get_args(kind)[1])}"
    return {str: "a string", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}[kind]


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
