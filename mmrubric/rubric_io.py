"""Reading and writing rubric files, with errors that name file, line, criterion and field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mmrubric.atomic import write_text
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric

_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")


class Dumper(yaml.SafeDumper):
    """Safe YAML; line breaks that are not \\n are escaped, because a reader would fold them into blanks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if _OTHER_BREAKS.search(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.represent_text)


class Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice; plain PyYAML keeps the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping after checking its keys."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # pyright: ignore
        _refuse_repeats(keys, f"line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep=deep)


def _refuse_repeats(keys: list[Any], where: str) -> None:
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{where}: key {', '.join(twice)} is given twice")


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats([key for key, _ in pairs], "JSON object")
    return dict(pairs)


def explain(error: ValidationError, data: Any, where: str) -> str:
    """One line per problem: `where: criterion 'id' (criteria[i]): field 'weight': message`."""
    lines = []
    for problem in error.errors():
        place, path = where, [str(part) for part in problem["loc"]]
        if len(path) > 1 and path[0] == "criteria" and path[1].isdigit():
            place += f": criterion {_id_of(data, int(path[1]))}(criteria[{path[1]}])"
            path = path[2:]
        if path:
            place += f": field {'.'.join(path)!r}"
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden" and len(path) == 1:
            fields = Criterion.model_fields if problem["loc"][0] == "criteria" else Rubric.model_fields
            text = f"unknown field; known: {', '.join(fields)}"
        shown = problem.get("input")
        if problem["type"] != "missing" and isinstance(shown, (str, int, float, bool)):
            text += f" (got {shown!r})"
        lines.append(f"{place}: {text}")
    return "\n".join(lines)


def _id_of(data: Any, index: int) -> str:
    criteria = data.get("criteria") if isinstance(data, dict) else None
    item = criteria[index] if isinstance(criteria, (list, tuple)) and index < len(criteria) else None
    id = item.get("id") if isinstance(item, dict) else getattr(item, "id", None)
    return f"{id!r} " if id is not None else ""


def parse(data: Any, where: str) -> Rubric:
    """Validate plain data into a rubric; `InputError` begins with `where`."""
    if isinstance(data, Rubric):
        return data
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected a mapping with prompt and criteria, got {type(data).__name__}")
    try:
        return Rubric.model_validate(data)
    except ValidationError as error:
        raise InputError(explain(error, data, where)) from error


def dump(rubric: Rubric) -> dict[str, Any]:
    """Plain data without defaults, such as `save` writes."""
    return rubric.model_dump(mode="json", exclude_defaults=True)


def load(path: Path) -> Rubric:
    """Read one rubric from a .yaml, .yml or .json file."""
    if path.suffix == ".jsonl":
        raise InputError(f"{path}: a .jsonl file holds many rubrics; use Rubric.load_many")
    text = read_text(path)
    if _is_yaml(path):
        try:
            data = yaml.load(text, Loader=Loader)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(f"{path}: not valid YAML: {error}") from error
    else:
        data = parse_json(text, str(path))
    return parse(data, str(path))


def load_many(path: Path) -> list[Rubric]:
    """Read a .jsonl file, one rubric per line; blank lines are skipped."""
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: expected a .jsonl file, one rubric per line")
    rubrics = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            rubrics.append(parse(parse_json(line, where), where))
    if not rubrics:
        raise InputError(f"{path}: holds no rubric")
    return rubrics


def save(rubric: Rubric, path: Path) -> None:
    """Write one rubric to a .yaml, .yml or .json file."""
    if _is_yaml(path):
        text = yaml.dump(dump(rubric), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    else:
        text = json.dumps(dump(rubric), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    write_text(path, text)


def save_many(rubrics: Iterable[Rubric], path: Path) -> None:
    """Write a .jsonl file, one rubric per line."""
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: expected a .jsonl file, one rubric per line")
    write_text(path, "".join(json.dumps(dump(r), ensure_ascii=False, allow_nan=False) + "\n" for r in rubrics))


def _is_yaml(path: Path) -> bool:
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise InputError(f"{path}: unknown file type {path.suffix!r}; known: .yaml, .yml, .json")
    return path.suffix != ".json"


def read_text(path: Path) -> str:
    """Text of a UTF-8 file; `InputError` names it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {error}") from error


def parse_json(text: str, where: str) -> Any:
    """A JSON value without repeated keys; `InputError` begins with `where`."""
    try:
        return json.loads(text, object_pairs_hook=_unique_object)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {error}") from error
