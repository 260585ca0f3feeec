"""Configuration files: overrides, refusals, and messages that name file, key, value and close matches."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, model_validator

from mmrubric.config import Config, config_hash, dump_config, load_config, require_forbid, save_config, unset_keys
from mmrubric.errors import InputError


class Optimizer(Config):
    lr: float = Field(default=1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)


class Clip(Config):
    name: Literal["clip"] = "clip"
    low: float = 1e-3


class Nft(Config):
    name: Literal["nft"] = "nft"
    beta: float = 1.0


class Dataset(Config):
    path: str
    share: float = 1.0


class Run(Config):
    steps: int = 10
    name: str = "run"
    noise: str = "ode"
    optimizer: Optimizer = Optimizer()
    loss: Annotated[Clip | Nft, Field(discriminator="name")] = Clip()
    data: tuple[Dataset, ...] = ()
    window: Optimizer | None = None
    out: str = "runs"

    @model_validator(mode="after")
    def _even(self) -> Run:
        if self.steps % 2:
            raise ValueError("steps must be even")
        return self


def file(tmp_path, text, name="rpo.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def fails(message, *args):
    with pytest.raises(InputError, match=message) as caught:
        load_config(Run, *args)
    return str(caught.value)


def test_file_then_overrides_in_order(tmp_path):
    path = file(tmp_path, "steps: 4\noptimizer: {lr: 2e-4}\nloss: {name: nft}\ndata: [{path: a}, {path: b}]\n")
    config = load_config(
        Run,
        path,
        ["steps=6", "steps=8", "optimizer.betas=[0.5,0.6]", "loss.beta=0.1", "data.1.share=0.5", "name=a=b"],
    )
    assert config == Run(
        steps=8, name="a=b", optimizer=Optimizer(lr=2e-4, betas=(0.5, 0.6)), loss=Nft(beta=0.1),
        data=(Dataset(path="a"), Dataset(path="b", share=0.5)),
    )  # fmt: skip
    assert load_config(Run, path, ["data[0].path=c"]).data[0].path == "c"
    assert load_config(Run, path, ["window=null"]).window is None
    assert load_config(Run, path, ["window.lr=1"]).window == Optimizer(lr=1)
    assert load_config(Run, None, ["optimizer.lr=1e-3"]).optimizer.lr == 0.001
    assert load_config(Run, file(tmp_path, "")) == Run()


def test_round_trip_and_hash(tmp_path):
    config = Run(steps=2, loss=Nft(), data=(Dataset(path="ä"),))
    save_config(config, tmp_path / "c.yaml")
    assert load_config(Run, tmp_path / "c.yaml") == config
    assert "name: nft" in dump_config(config)
    assert config_hash(config) == config_hash(Run.model_validate(config.model_dump()))
    assert config_hash(config) != config_hash(Run(steps=4, loss=Nft(), data=config.data))
    moved = config.model_copy(update={"out": "elsewhere"})
    assert config_hash(config) != config_hash(moved)
    assert config_hash(config, exclude={"out"}) == config_hash(moved, exclude={"out"})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stpes: 4\n", ["unknown key 'stpes'", "value 4", "did you mean 'steps'"]),
        ("optimizer: {learning: 1}\n", ["'optimizer.learning'", "known keys here: betas, lr"]),
        ("loss: {name: nft, betta: 2}\n", ["'loss.betta'", "did you mean 'beta'"]),
        ("lr: 1\n", ["unknown key 'lr'", "did you mean 'optimizer.lr'"]),
        (
            "data: [{path: a}, {pth: b}]\n",
            ["'data.1.pth'", "did you mean 'path'", "data.1.path: this key is required"],
        ),
        ("window: {lrr: 1}\n", ["'window.lrr'", "did you mean 'lr'"]),
        ("steps: many\n", ["steps: ", "integer", "value 'many'"]),
        ("steps: 3\n", ["the whole configuration: steps must be even"]),
        ("optimizer: {lr: 0}\n", ["optimizer.lr: ", "greater than 0", "value 0"]),
        ("optimizer: {lr: .nan}\n", ["optimizer.lr: ", "finite", "nan"]),
        ("optimizer: 3\n", ["optimizer: ", "value 3"]),
        ("loss: {name: clop}\n", ["loss", "'clip', 'nft'"]),
        ("noise: off\n", ["noise: ", "string", "False"]),
        ("steps: ${missing}\n", ["missing"]),
        ("steps: ???\n", ["steps"]),
    ],
)
def test_messages_name_file_key_value_and_matches(tmp_path, text, parts):
    message = fails(".", file(tmp_path, text))
    assert all(part in message for part in ["rpo.yaml", *parts]), message


def test_every_fault_has_its_line(tmp_path):
    message = fails(".", file(tmp_path, "stpes: 4\nnme: x\noptimizer: {lr: -1}\n"))
    assert len(message.splitlines()) == 3


def test_an_override_is_named_as_the_source(tmp_path):
    path = file(tmp_path, "steps: 4\n")
    assert "override 'optimizer.lrr=1'" in fails("did you mean 'lr'", path, ["optimizer.lrr=1"])
    assert "override 'optimizer={lrr: 1}'" in fails("lrr", path, ["optimizer={lrr: 1}"])
    assert ", override" not in fails("stpes", file(tmp_path, "stpes: 4\n"), ["steps=6"])
    fails("dotted.key=value", path, ["steps"])
    fails("dotted.key=value", path, ["=3"])
    fails("broken YAML", path, ["name=[1,"])
    fails("data.0.path", file(tmp_path, "data: []\n"), ["data.0.path=a"])


def test_references_work_but_resolvers_are_refused(tmp_path, monkeypatch):
    assert load_config(Run, file(tmp_path, "name: x\nout: runs/${name}\n")).out == "runs/x"
    assert load_config(
        Run, file(tmp_path, "optimizer: {lr: 0.5}\nwindow: {lr: '${optimizer.lr}'}\n")
    ).window == Optimizer(lr=0.5)
    monkeypatch.setenv("SECRET", "leaked")
    for text in ("${oc.env:SECRET}", "a${oc.env:SECRET}", "${oc.decode:x}", "${${name}}"):
        message = fails("only references", file(tmp_path, f"name: '{text}'\n"))
        assert "leaked" not in message and "name" in message
        fails("only references", None, [f"name='{text}'"])
    fails(".", file(tmp_path, "name: ${out}\nout: ${name}\n"))


def test_broken_files(tmp_path):
    message = fails("line 3: broken YAML", file(tmp_path, "steps: 4\nname: [1\n"))
    assert "rpo.yaml" in message
    fails("uplicate", file(tmp_path, "steps: 4\nsteps: 6\n"))
    fails("top level must be a mapping", file(tmp_path, "- 1\n"))
    fails("did you mean 'rpo.yaml'", tmp_path / "rop.yaml")
    fails("no such configuration file", tmp_path / "no" / "x.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\n")
    fails("UTF-8", tmp_path / "latin.yaml")
    fails(".", file(tmp_path, "steps: !!python/object/apply:os.system ['true']\n"))


def test_a_class_that_would_ignore_keys_is_a_bug():
    class Loose(BaseModel):
        x: int = 1

    class Holder(Config):
        parts: tuple[dict[str, Loose], ...] = ()

    with pytest.raises(TypeError, match="Loose"):
        require_forbid(Holder)
    with pytest.raises(TypeError, match="Loose"):
        load_config(Loose, None)


def test_keys_that_a_file_leaves_to_the_user_are_faults_unless_they_are_to_be_kept(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("name: ???\nnoise: ${name}\nsteps: 4\n")
    with pytest.raises(InputError, match="name"):
        load_config(Run, path)
    config = load_config(Run, path, keep_unset=True)
    assert config.steps == 4 and unset_keys(config) == ["name", "noise"]
    assert unset_keys(load_config(Run, path, ["name=x"], keep_unset=True)) == []
