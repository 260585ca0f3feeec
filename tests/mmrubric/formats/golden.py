"""One golden row per format with a full round trip, written by hand in the published layout."""

from __future__ import annotations

from typing import Any

HEALTHBENCH: dict[str, Any] = {
    "prompt_id": "p1",
    "prompt": [
        {"role": "user", "content": "Draw a red bus"},
        {"role": "assistant", "content": "In which style?"},
        {"role": "user", "content": "Watercolor"},
    ],
    "rubrics": [
        {"criterion": "The bus is red", "points": 5, "tags": ["level:example", "axis:accuracy"]},
        {"criterion": "A watermark is visible", "points": -3, "tags": []},
    ],
    "example_tags": ["theme:object"],
    "ideal_completions_data": {"ideal_completion": "…", "ideal_completions_group": None},
}

HEALTHBENCH_PROFESSIONAL: dict[str, Any] = {
    "id": "q7",
    "use_case": "poster",
    "type": "draw",
    "difficulty": "hard",
    "specialty": "traffic",
    "conversation": {"messages": [{"role": "user", "content": "Draw a red bus"}], "turns": 1},
    "rubric_items": [
        {"criterion_text": "The bus is red", "points": 7.5},
        {"criterion_text": "A watermark is visible", "points": -3},
    ],
}

RAR: dict[str, Any] = {
    "question": "Draw a red bus",
    "reference_answer": "A watercolor of a red bus.",
    "question_source": "made up",
    "rubric": [
        {"title": "Red bus", "description": "Essential Criteria: The bus is red", "weight": 5},
        {"title": "Sky", "description": "Important Criteria: The sky is blue", "weight": 3},
        {"title": "Watermark", "description": "Pitfall: A watermark is visible", "weight": -2},
        {"title": "Style", "description": "The style is watercolor", "weight": 1},
    ],
    "rubric_list": ["Red bus", "Sky", "Watermark", "Style"],
    "rubric_count": 4,
}

_BARE = [{"criterion": "The bus is red", "points": 5}, {"criterion": "At most 8 words are written", "points": 2}]
_TAGGED = [
    {**_BARE[0], "tags": ["verifier:llm"]},
    {**_BARE[1], "tags": ["verifier:rule", "function:max_words", 'parameters:{"count":8}']},
]
_MESSAGES = [{"role": "system", "content": "You draw."}, {"role": "user", "content": "Draw a red bus"}]

VERL: dict[str, Any] = {
    "data_source": "chat",
    "prompt": _MESSAGES,
    "ability": "chat",
    "reward_model": {"style": "rubric", "rubrics": _TAGGED, "ground_truth": ""},
    "extra_info": {
        "prompt": _MESSAGES,
        "reward_model": {"style": "rubric", "rubrics": _TAGGED, "ground_truth": ""},
    },
}

RUBRICHUB: dict[str, Any] = {
    **VERL,
    "Rubrics": _BARE,
    "reward_model": {"style": "rubric", "rubrics": _BARE, "ground_truth": ""},
    "extra_info": {"prompt": _MESSAGES, "index": 3, "reward_model": {"rubrics": _TAGGED}},
}

RUBRICHUB_QUESTIONS: dict[str, Any] = {"question": "Draw a red bus", "id": "r1", "rubrics": _BARE}

PRBENCH: dict[str, Any] = {
    "task": "t1",
    "field": "Drawing",
    "prompt_0": "Draw a bus",
    "response_0": "Which colour?",
    "prompt_1": "Red",
    "prompt_2": None,
    "reference_texts_0": ["…"],
    "rubric": [
        {
            "id": "c1",
            "title": "Shows a red bus",
            "annotations": {
                "weight_class": "critically important",
                "critically_important_weight": 9,
                "criteria_category": "Content",
            },
        },
        {
            "id": "mark",
            "title": "A watermark is visible",
            "annotations": {
                "weight_class": "detrimental",
                "detrimental_weight": -6,
                "important_weight": None,
                "criteria_category": "Content",
                "field_for_category": "Drawing",
            },
        },
    ],
}

AUTORUBRIC: list[dict[str, Any]] = [
    {"name": "red_bus", "weight": 10, "requirement": "The bus is red"},
    {"name": "sky", "requirement": "The sky is blue"},
    {"name": "watermark", "weight": -5, "requirement": "A watermark is visible"},
    {
        "name": "style",
        "weight": 4,
        "requirement": "How close is the style to watercolor?",
        "scale_type": "ordinal",
        "options": [
            {"label": "far", "value": 0},
            {"label": "close", "value": 0.6},
            {"label": "exact", "value": 1},
            {"label": "cannot tell", "value": 0, "na": True},
        ],
    },
    {
        "name": "place",
        "requirement": "Where is the bus?",
        "scale_type": "nominal",
        "aggregation": "mode",
        "options": [
            {"label": "street", "value": 1},
            {"label": "field", "value": 0.5},
            {"label": "no bus", "value": 0, "na": True},
        ],
    },
]

AUTORUBRIC_SECTIONS: dict[str, Any] = {
    "guidelines": "Look twice.",
    "sections": [
        {"name": "object", "criteria": AUTORUBRIC[:2]},
        {"name": "faults", "weight": 2, "criteria": AUTORUBRIC[2:3]},
    ],
}

MMRUBRIC: dict[str, Any] = {
    "prompt": "Draw a red bus",
    "criteria": [
        {"id": "bus", "text": "A bus is visible", "hard": True},
        {"id": "red", "text": "The bus is red", "weight": 2.0, "depends_on": ["bus"]},
    ],
}

ROUND_TRIP: list[tuple[str, Any]] = [
    ("healthbench", HEALTHBENCH),
    ("healthbench_professional", HEALTHBENCH_PROFESSIONAL),
    ("rar", RAR),
    ("verl", VERL),
    ("rubrichub", RUBRICHUB),
    ("rubrichub_questions", RUBRICHUB_QUESTIONS),
    ("prbench", PRBENCH),
    ("autorubric", AUTORUBRIC),
    ("autorubric", AUTORUBRIC_SECTIONS),
    ("mmrubric", MMRUBRIC),
]

IMPORT_ONLY: list[tuple[str, Any]] = [
    (
        "openrubrics",
        {
            "instruction": "Draw a red bus",
            "rubric": "1. The bus is red [Hard Rule]\n2. Balanced composition [Principle]",
            "source": "x",
        },
    ),
    (
        "rubric_2_2",
        {"sections": [{"name": "object", "criteria": [{"weight": 2, "requirement": "The bus is red"}]}]},
    ),
    (
        "verifiers",
        {
            "criteria": [
                {"name": "red", "text": "The bus is red", "weight": 2},
                {"name": "style", "text": "Style?", "choices": ["far", "close", "exact"]},
            ]
        },
    ),
    (
        "rubric_reward_lens",
        {"name": "bus", "criteria": [{"id": "mark", "text": "A watermark", "weight": 3, "polarity": "AVOID"}]},
    ),
    (
        "prometheus",
        "[Is the bus drawn well?]\n" + "\n".join(f"Score {k}: level {k}" for k in range(1, 6)),
    ),
    (
        "vertex",
        [
            {
                "rubricId": "red",
                "content": {"property": {"description": "The bus is red"}},
                "type": "COLOR",
                "importance": "HIGH",
            }
        ],
    ),
    (
        "researchrubrics",
        {
            "prompt": "Draw a red bus",
            "domain": "art",
            "sample_id": "s1",
            "rubrics": [{"criterion": "The bus is red", "weight": -4.0, "axis": "Explicit"}],
        },
    ),
    ("wildchecklists", {"prompt": "Draw a red bus", "requirements": "1. The bus is red?\n2) A road is visible?"}),
    (
        "advancedif",
        {
            "conversation_history": '[{"role": "user", "content": "Draw a red bus"}]',
            "prompt_metadata": '{"rubrics": ["The bus is red"], "kind": "if"}',
        },
    ),
    (
        "auto_rubric",
        {
            "unique_id": "u1",
            "source": "x",
            "rubrics": ["The bus is red"],
            "rubric_valid": "True",
            "rubric_epoch": 2,
            "input": [{"role": "user", "content": "Draw a red bus"}],
            "output": [],
        },
    ),
    (
        "rubrichub_sft",
        {
            "source": "x",
            "query": "Draw a red bus",
            "answer": "…",
            "sample_id": "s1",
            "rubrics": '[{"criterion": "The bus is red", "points": 5}]',
            "rubric_score": 0.5,
        },
    ),
    (
        "autorubric_dataset",
        {
            "name": "buses",
            "prompt": "Draw a red bus",
            "rubric": [{"name": "red", "requirement": "The bus is red"}],
            "items": [{"submission": "a.png"}, {"submission": "b.png", "rubric": [{"requirement": "Blue"}]}],
        },
    ),
    ("text", "Objects:\n- The bus is red\n- A road\n  is visible"),
]
