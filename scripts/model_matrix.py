"""docs/models.md: what the tests cover for each architecture, from the tests that pytest collects.

python scripts/model_matrix.py          # write it
python scripts/model_matrix.py --check  # exit 1 if it is not up to date
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DOCUMENT = ROOT / "docs" / "models.md"
YES, REFUSED, UNTESTED = "yes", "refused", "untested"
FILES = (
    "tests/pipelines/test_contract.py",
    "tests/pipelines/test_token_contract.py",
    "tests/pipelines/test_tokens.py",
    "tests/pipelines/test_token_ranks.py",
    "tests/trainers/test_architectures.py",
    "tests/trainers/test_deepspeed.py",
    "tests/trainers/test_sharded_models.py",
    "tests/trainers/test_sharding.py",
    "tests/trainers/test_token_loop.py",
    "tests/trainers/test_token_losses.py",
)


@dataclass(frozen=True)
class Check:
    """Tests that show something for an architecture."""

    test: str
    """Name of the function."""
    part: str = ""
    """What the id must hold besides the architecture."""
    case: str = ""
    """Architecture of a test whose id names none."""
    shows: str = YES


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    says: str
    """What the tests show."""
    checks: tuple[Check, ...]
    """Any of them."""

    @classmethod
    def of(cls, says: str, *checks: Check) -> Row:
        return cls(says, checks)


FLOW_OR_DDIM = {
    "plain": Row.of(
        "Deterministic sampling gives the latents of the plain diffusers pipeline to 1e-5, from the same noise.",
        Check("test_ode_sampling_equals_the_plain_pipeline", "1.0"),
    ),
    "guided": Row.of("The same at guidance 3.5.", Check("test_ode_sampling_equals_the_plain_pipeline", "3.5")),
    "ratio fp32": Row.of(
        "Replayed log-probs of a fresh rollout differ by at most 1e-6, with and without guidance, for every noise.",
        Check("test_ratio_is_one_on_the_first_pass", "fp32"),
    ),
    "ratio bf16": Row.of(
        "The same with bf16 autocast, by at most 1e-5.", Check("test_ratio_is_one_on_the_first_pass", "bf16")
    ),
    "ratio fp16": Row.of("The same with fp16 autocast.", Check("test_ratio_is_one_on_the_first_pass", "fp16")),
    "batch": Row.of(
        "Other batch sizes and another order of the rows change the samples by at most 1e-5.",
        Check("test_batch_split_and_order_do_not_change_the_samples"),
    ),
    "sizes": Row.of(
        "Other sizes than the model's own sample and replay; sizes that do not fit are errors.",
        Check("test_other_sizes_and_sizes_that_do_not_fit"),
    ),
    "full": Row.of(
        "A step on all weights follows the gradient.", Check("test_one_optimizer_step_follows_the_gradient", "full")
    ),
    "LoRA": Row.of("A step on an adapter does.", Check("test_one_optimizer_step_follows_the_gradient", "lora")),
    "checkpointing": Row.of(
        "Gradient checkpointing gives the same gradient.", Check("test_gradient_checkpointing_gives_the_same_gradient")
    ),
    "saved full": Row.of(
        "Trained weights, saved, load in plain diffusers and give the same samples.",
        Check("test_full_weights_are_saved_for_plain_diffusers"),
    ),
    "saved LoRA": Row.of(
        "A trained adapter, saved, loads by the pipeline's own `load_lora_weights` and gives the same samples.",
        Check("test_lora_is_saved_for_plain_diffusers"),
    ),
    "clip": Row.of(
        "The training loop makes a step with loss.name=clip.", Check("test_a_loss_on_sampled_steps_trains", "clip")
    ),
    "guard": Row.of(
        "The same with guard.",
        Check("test_a_loss_on_sampled_steps_trains", "guard"),
        Check("test_losses_of_flow_models_are_refused", "guard", shows=REFUSED),
    ),
    "nft": Row.of(
        "The same with nft.",
        Check("test_a_loss_on_noised_samples_trains"),
        Check("test_losses_of_flow_models_are_refused", "nft", shows=REFUSED),
    ),
    "resume": Row.of(
        "One step, a checkpoint and another step equal two steps, bitwise.",
        Check("test_a_resumed_run_goes_on_bitwise"),
    ),
    "FSDP2": Row.of(
        "Two ranks that hold the weights in shards equal one process.",
        Check("test_ranks_equal_one_process", "fsdp2", "sd3"),
        Check("test_other_models_in_shards_equal_the_whole", "fsdp2"),
    ),
    "ZeRO-3": Row.of(
        "The same under DeepSpeed ZeRO-3.",
        Check("test_two_ranks_equal_one_process", "zero3", "sd3"),
        Check("test_other_models_in_shards_equal_the_whole", "zero3"),
    ),
}
TOKENS = {
    "plain": Row.of(
        "Greedy tokens and their picture are those of plain transformers.",
        Check("test_greedy_tokens_and_pictures_are_those_of_plain_janus", case="Janus"),
        Check("test_greedy_tokens_and_pictures_are_those_of_plain_emu3", case="Emu3"),
    ),
    "guided": Row.of(
        "Both branches of the guided log-prob have gradient.", Check("test_the_unconditional_branch_has_gradient")
    ),
    "ratio fp32": Row.of(
        "Replayed log-probs of a fresh rollout differ by at most 2e-5, with guidance, temperature and cuts.",
        Check("test_tf09_ratio_is_one_on_the_first_pass"),
    ),
    "ratio bf16": Row.of(
        "With bf16 autocast replays agree bitwise, and with sampling to 0.05 on average.",
        Check("test_half_precision_replays_to_rounding", "bf16"),
    ),
    "ratio fp16": Row.of("The same with fp16 autocast.", Check("test_half_precision_replays_to_rounding", "fp16")),
    "batch": Row.of(
        "Other batch sizes and another order of the rows give the same tokens.",
        Check("test_seeds_alone_decide_the_tokens"),
    ),
    "full": Row.of(
        "A step on all weights follows the gradient.", Check("test_an_update_raises_the_log_prob_of_what_it_rewards")
    ),
    "LoRA state": Row.of(
        "An adapter's state is saved and taken up bitwise.", Check("test_state_dict_resumes_bitwise", "lora")
    ),
    "checkpointing": Row.of(
        "Gradient checkpointing gives the same gradient.", Check("test_gradient_checkpointing_gives_the_same_gradient")
    ),
    "saved full": Row.of(
        "Trained weights, saved, load in plain transformers and give the same log-probs.",
        Check("test_full_weights_are_saved_for_plain_transformers"),
    ),
    "saved LoRA": Row.of(
        "A trained adapter, saved, loads by peft and gives the same log-probs.",
        Check("test_lora_is_saved_for_plain_transformers_and_peft"),
    ),
    "clip": Row.of(
        "The training loop makes a step with loss.name=clip.",
        Check("test_a_step_moves_the_weights_and_its_first_pass_has_ratio_one"),
    ),
    "ppo": Row.of("The same with ppo.", Check("test_ppo_trains_the_value_head_with_one_sample_per_prompt")),
    "nft": Row.of(
        "The same with nft.",
        *(
            Check("test_what_does_not_fit_a_token_model_is_refused", "needs velocity", case, REFUSED)
            for case in ("Janus", "Emu3")
        ),
    ),
    "resume": Row.of(
        "Steps, a checkpoint and further steps equal all steps at once, bitwise.",
        Check("test_n_and_m_steps_equal_n_resume_m"),
    ),
    "FSDP2": Row.of(
        "Two ranks that hold the weights in shards equal one process.",
        Check("test_tf46_two_ranks_train_as_one_process"),
    ),
    "ZeRO-3": Row.of(
        "The same under DeepSpeed ZeRO-3.",
        Check("test_a_token_model_and_its_value_head_train_as_on_one_process", "zero3"),
    ),
}

HEAD = """# Models

What the tests cover for each architecture, on tiny random models of it (`pipelines/testing*.py`): the arithmetic is
that of the real ones, the weights are not. This file is written by `python scripts/model_matrix.py` from the tests that
pytest collects; a test keeps it up to date.

**yes**: a test covers it. **refused**: not possible; an error names the reason before weights load, and a test covers
that. **untested**: no test covers it; it may work.

## Flow models and DDIM models

*sort*: **flow** models are rectified flows and take the noises `sde`, `dance` and `cps`. **DDIM** models take the noise
`ddim` (DDPO); whatever scheduler a directory has, its betas are sampled by DDIM. *latents*: **packed** models read
tokens of 2 x 2 latent pixels; rollouts hold plain latents all the same. *sources*: source images that a prompt has.
"""


def collect() -> list[str]:
    """Ids of the tests, as `pytest` collects them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"pytest cannot collect:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def covered(ids: Iterable[str], cases: Iterable[str], rows: dict[str, Row]) -> dict[tuple[str, str], str]:
    """(architecture, row) -> yes or refused; what is missing is untested.

    Args:
        ids: of tests, `file::function[architecture-part-...]`.
        cases: architectures; upper and lower case are alike.
        rows: of the table.
    """
    found: dict[tuple[str, str], str] = {}
    names = sorted(cases, key=len, reverse=True)
    for test in ids:
        function, _, rest = test.split("::", 1)[-1].removesuffix("]").partition("[")
        own = next((name for name in names if f"{rest}-".lower().startswith(f"{name}-".lower())), "")
        parts = rest[len(own) :].split("-")
        for heading, row in rows.items():
            for check in row.checks:
                case = check.case or own
                if case and check.test == function and (not check.part or check.part in parts):
                    found[case, heading] = check.shows
    return found


def table(ids: Iterable[str], about: dict[str, dict[str, str]], rows: dict[str, Row]) -> str:
    """A table of architectures with the explanation of its rows.

    Args:
        ids: of tests.
        about: architecture -> facts by heading, the same headings for each, `loads` among them.
        rows: what tests show.
    """
    cells = covered(ids, about, rows)
    facts = [heading for heading in next(iter(about.values())) if heading != "loads"]
    lines = [
        ["", *about],
        ["---"] * (len(about) + 1),
        *([heading, *(fact[heading] for fact in about.values())] for heading in facts),
        *([heading, *(cells.get((name, heading), UNTESTED) for name in about)] for heading in rows),
    ]
    grid = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    loads = "\n".join(f"- {name}: `{fact['loads']}`" for name, fact in about.items())
    return f"{grid}\n\nThe rows and their tests:\n\n{_explained(rows)}\n\nThe classes that load:\n\n{loads}\n"


def _explained(rows: dict[str, Row]) -> str:
    lines = []
    for heading, row in rows.items():
        tests = ", ".join(dict.fromkeys(f"`{check.test}`" for check in row.checks))
        lines.append(f"- **{heading}**: {row.says}" + (f" {tests}" if tests else ""))
    return "\n".join(lines)


def document(ids: list[str]) -> str:
    """The whole file."""
    from pipelines.token_load import MODELS
    from tests.pipelines.cases import CASES

    about = {
        name: {
            "loads": case.pipeline,
            "sort": "DDIM" if "ddim" in case.noises else "flow",
            "latents": "packed" if case.packed else "plain",
            "sources": case.reads,
        }
        for name, case in CASES.items()
    }
    tokens = {name: {"loads": MODELS[name.lower()]} for name in ("Janus", "Emu3")}
    first, second = table(ids, about, FLOW_OR_DDIM), table(ids, tokens, TOKENS)
    return f"{HEAD}\n{first}\n## Token models\n\n{second}"


if __name__ == "__main__":
    text = document(collect())
    if sys.argv[1:] != ["--check"]:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text:
        sys.exit(f"{DOCUMENT} is not up to date: run python scripts/model_matrix.py")
