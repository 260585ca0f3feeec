from scripts import model_matrix
from scripts.model_matrix import FLOW_OR_DDIM, TOKENS


def test_cells_come_from_ids_of_tests():
    ids = [
        "tests/a.py::test_ratio_is_one_on_the_first_pass[flux-schnell-bf16-1.0]",
        "tests/a.py::test_ode_sampling_equals_the_plain_pipeline[flux-3.5]",
        "tests/a.py::test_losses_of_flow_models_are_refused[sd15-nft]",
        "tests/a.py::test_a_resumed_run_goes_on_bitwise[sd15]",
        "tests/a.py::test_ranks_equal_one_process[full-2-fsdp2]",
        "tests/a.py::test_ranks_equal_one_process[full-2]",
        "tests/a.py::test_something_else[flux]",
    ]
    cases = ["sd3", "flux", "flux-schnell", "sd15"]
    assert model_matrix.covered(ids, cases, FLOW_OR_DDIM) == {
        ("flux-schnell", "ratio bf16"): "yes",
        ("flux", "guided"): "yes",
        ("sd15", "nft"): "refused",
        ("sd15", "resume"): "yes",
        ("sd3", "FSDP2"): "yes",
    }
    assert model_matrix.covered(ids[5:], cases, FLOW_OR_DDIM) == {}
    ids = ["t.py::test_a_step_moves_the_weights_and_its_first_pass_has_ratio_one[janus]"]
    ids += ["t.py::test_what_does_not_fit_a_token_model_is_refused[settings_0-needs velocity]"]
    assert model_matrix.covered(ids, ["Janus", "Emu3"], TOKENS) == {
        ("Janus", "clip"): "yes",
        ("Janus", "nft"): "refused",
        ("Emu3", "nft"): "refused",
    }


def test_the_document_is_up_to_date():
    assert model_matrix.DOCUMENT.read_text(encoding="utf-8") == model_matrix.document(model_matrix.collect()), (
        "run python scripts/model_matrix.py"
    )
