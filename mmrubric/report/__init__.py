"""Reports: one HTML file for people, one JSON file for scripts."""

from mmrubric.report.images import png_bytes
from mmrubric.report.model import (
    AlignmentReport,
    CurvePoint,
    Measure,
    Picture,
    PromptResult,
    Reliability,
    Section,
)
from mmrubric.report.numbers import Numbers, as_json, compute
from mmrubric.report.probes import ProbeResult, run_probes
from mmrubric.report.reliability import (
    Count,
    attack_probes,
    judge_fidelity,
    rubric_quality,
    saturation_and_ties,
)
from mmrubric.report.write import Written, render, write_report

__all__ = [
    "AlignmentReport",
    "Count",
    "CurvePoint",
    "Measure",
    "Numbers",
    "Picture",
    "ProbeResult",
    "PromptResult",
    "Reliability",
    "Section",
    "Written",
    "as_json",
    "attack_probes",
    "compute",
    "judge_fidelity",
    "png_bytes",
    "render",
    "rubric_quality",
    "run_probes",
    "saturation_and_ties",
    "write_report",
]
