"""Configuration: a YAML file, then dotted overrides, then a typed pydantic class that refuses unknown keys.

The file may refer to its own keys with `${a.b}`. Nothing else is interpolated: resolvers such as
`${oc.env:HOME}` are refused, so a configuration file reads no environment and runs no code.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from mmrubric.errors import InputError

C = TypeVar("C", bound=BaseModel)

UNSET = "<not set>"
"""Value of a key that a file leaves to the user, where `load_config` keeps those."""
_PLAIN_REFERENCE = re.compile(r"\$\{[A-Za-z_]\w*(\.\w+)*\}")
_MAX_SHOWN = 80


class Config(BaseModel):
    """Base of every configuration class: frozen, unknown keys refused, no NaN or infinity in any field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def load_config(cls: type[C], path: str | Path | None, overrides: Sequence[str] = (), *, keep_unset: bool = False) -> C:
    """Reads `path`, applies `key.sub=value` overrides in order, and builds `cls`.

    Args:
        cls: a pydantic class; it and every class nested in it must forbid unknown keys (see `Config`).
        path: YAML file, or None to start from the defaults of `cls`.
        overrides: `dotted.key=value`; the value is read as YAML, so `lr=1e-4`, `steps=[1,2]`, `kl=null`,
            and `items.0.name=x` for an element of a list. A later override wins over an earlier one.
        keep_unset: give keys that the file leaves to the user (`???`) the value `UNSET`, to look at the rest; without
            it they are faults.

    Raises:
        InputError: the message has one line per fault, with the file or override, the dotted key, the value,
            and close matches of an unknown key.
    """
    require_forbid(cls)
    where = "defaults" if path is None else str(path)
    tree = OmegaConf.create({}) if path is None else _read(Path(path))
    _check_references(OmegaConf.to_container(tree, resolve=False), where)
    for text in overrides:
        _override(tree, text)
    if keep_unset:
        for key in OmegaConf.missing_keys(tree):
            OmegaConf.update(tree, key, UNSET)
    try:
        plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise InputError(f"{where}: {_key_of(error)}{_first_line(error)}") from error
    try:
        return cls.model_validate(plain)
    except ValidationError as error:
        lines = [_explain(cls, detail, where, overrides) for detail in error.errors()]
        raise InputError("\n".join(lines)) from error


def unset_keys(config: BaseModel) -> list[str]:
    """Dotted keys whose value is `UNSET`, see `load_config`."""

    def find(value: Any, key: str) -> Iterator[str]:
        if isinstance(value, dict):
            for name, part in value.items():
                yield from find(part, f"{key}.{name}" if key else str(name))
        elif value == UNSET:
            yield key

    return list(find(config.model_dump(mode="json"), ""))


def dump_config(config: BaseModel) -> str:
    """The configuration as YAML that `load_config` reads back to an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def save_config(config: BaseModel, path: str | Path) -> None:
    """Writes `dump_config` to `path` (UTF-8)."""
    Path(path).write_text(dump_config(config), encoding="utf-8")


def config_hash(config: BaseModel, exclude: set[str] | None = None) -> str:
    """sha256 hex of the values; top-level fields in `exclude` (such as an output folder) do not count."""
    values = config.model_dump(mode="json", exclude=exclude)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def require_forbid(cls: type[BaseModel]) -> None:
    """Checks that `cls` and all classes nested in it refuse unknown keys; a class that does not is a bug.

    Raises:
        TypeError: naming the class.
    """
    for model in sorted(_models_in(cls), key=lambda m: m.__name__):
        if model.model_config.get("extra") != "forbid":
            raise TypeError(f'{model.__name__} must set extra="forbid": it would accept and ignore unknown keys')


def _models_in(kind: Any, seen: set[type[BaseModel]] | None = None) -> set[type[BaseModel]]:
    seen = set() if seen is None else seen
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind not in seen:
            seen.add(kind)
            for field in kind.model_fields.values():
                _models_in(field.annotation, seen)
    else:
        for part in get_args(kind):
            _models_in(part, seen)
    return seen


def _read(path: Path) -> DictConfig:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _siblings(path), n=3)
        raise InputError(f"{path}: no such configuration file{_did_you_mean(near)}")
    try:
        # OmegaConf's loader is a safe one and refuses a key that is given twice.
        tree = OmegaConf.load(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise InputError(f"{path}{line}: broken YAML: {error.problem}") from error
    except (yaml.YAMLError, OmegaConfBaseException, OSError) as error:
        raise InputError(f"{path}: cannot be read as YAML: {_first_line(error)}") from error
    if isinstance(tree, ListConfig):
        raise InputError(f"{path}: the top level must be a mapping of keys to values, not a list")
    return tree


def _siblings(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []


def _split(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*(\.\w+|\[\d+\])*", key):
        raise InputError(f"override {text!r}: write it as dotted.key=value")
    return key, value


def _override(tree: DictConfig, text: str) -> None:
    key, value = _split(text)
    try:
        parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"override {text!r}: the value is broken YAML: {_first_line(error)}") from error
    _check_references(parsed["value"], f"override {text!r}", key)
    try:
        OmegaConf.update(tree, key, parsed["value"], merge=True, force_add=True)
    except (OmegaConfBaseException, IndexError, TypeError, ValueError, AssertionError) as error:
        raise InputError(f"override {text!r}: {key} cannot be set: {_first_line(error)}") from error


def _check_references(value: Any, where: str, key: str = "") -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_references(item, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_references(item, where, f"{key}.{index}")
    elif isinstance(value, str) and "${" in _PLAIN_REFERENCE.sub("", value):
        raise InputError(f"{where}: {key}: {_show(value)}: only references such as ${{a.b}} are allowed, no resolvers")


def _explain(cls: type[BaseModel], detail: ErrorDetails, where: str, overrides: Sequence[str]) -> str:
    loc = tuple(detail["loc"])
    dotted, owner = _walk(cls, loc)
    source = where
    for text in overrides:
        key = _split(text)[0].replace("[", ".").replace("]", "")
        if dotted == key or dotted.startswith(key + ".") or key.startswith(dotted + "."):
            source = f"{where}, override {text!r}"
    if detail["type"] == "extra_forbidden":
        name, known = str(loc[-1]), sorted(owner.model_fields) if owner else []
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or _elsewhere(cls, name)
        hint = _did_you_mean(near) or (f"; known keys here: {', '.join(known)}" if known else "")
        return f"{source}: unknown key {dotted!r} (value {_show(detail['input'])}){hint}"
    if detail["type"] == "missing":
        return f"{source}: {dotted}: this key is required and was not given"
    message = detail["msg"].removeprefix("Value error, ")
    at = dotted or "the whole configuration"
    # A validator of a whole section gets the section as its input; printing it would hide the message.
    given = "" if isinstance(detail["input"], (dict, BaseModel)) and not loc else f" (value {_show(detail['input'])})"
    return f"{source}: {at}: {message}{given}"


def _walk(cls: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, type[BaseModel] | None]:
    """Dotted key of an error location, and the class that owns its last part.

    pydantic puts tags of union members between the keys; they are left out, because the user never wrote
    them.
    """
    keys: list[str] = []
    kinds: list[Any] = [cls]
    owner: type[BaseModel] | None = cls
    for index, part in enumerate(loc):
        models = [m for k in kinds for m in _direct_models(k)]
        holders = [m for m in models if part in m.model_fields]
        last = index == len(loc) - 1
        if holders:
            keys.append(str(part))
            owner = holders[0]
            kinds = [m.model_fields[str(part)].annotation for m in holders]
        elif isinstance(part, int) or last or not models:
            if isinstance(part, str) and last and any(m.__name__ == part for m in models):
                break
            keys.append(str(part))
            owner = models[0] if models else None
            kinds = [a for k in kinds for a in _item_kinds(k)]
        else:
            kinds = [m for m in models if _tag_matches(m, str(part))] or kinds
    return ".".join(keys), owner


def _direct_models(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    if get_origin(kind) in (list, tuple, dict, set, frozenset, Sequence):
        return []
    return [m for part in get_args(kind) for m in _direct_models(part)]


def _item_kinds(kind: Any) -> list[Any]:
    origin = get_origin(kind)
    if origin in (list, tuple, dict, set, frozenset) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return list(get_args(kind))
    return [item for part in get_args(kind) for item in _item_kinds(part)]


def _tag_matches(model: type[BaseModel], tag: str) -> bool:
    literals = (f.default for f in model.model_fields.values())
    return model.__name__ == tag or tag in literals


def _elsewhere(cls: type[BaseModel], name: str) -> list[str]:
    """Dotted keys of the same name in other sections: `lr` for `optimizer.lr`."""
    found = []
    for field, info in cls.model_fields.items():
        for model in _direct_models(info.annotation):
            found += [f"{field}.{k}" for k in model.model_fields if k == name]
            found += [f"{field}.{k}" for k in _elsewhere(model, name)]
    return found[:3]


def _did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _key_of(error: OmegaConfBaseException) -> str:
    return f"{error.full_key}: " if error.full_key else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
