"""How good rubrics are: by their wording, against their prompts, and by what verdicts and proxies show.

Pure functions on rubrics, score tables and pair answers; nothing here asks a model.
"""

from mmrubric.quality.discrimination import Power, discrimination
from mmrubric.quality.finding import Finding, Severity
from mmrubric.quality.judges import JudgeAgreement, judge_agreement
from mmrubric.quality.linter import RULES, lint
from mmrubric.quality.prompt_coverage import Coverage, Covered, coverage
from mmrubric.quality.proxy import ProxyAccuracy, proxy_accuracy, proxy_credit, proxy_rewards, rank_by_proxy

__all__ = [
    "RULES",
    "Coverage",
    "Covered",
    "Finding",
    "JudgeAgreement",
    "Power",
    "ProxyAccuracy",
    "Severity",
    "coverage",
    "discrimination",
    "judge_agreement",
    "lint",
    "proxy_accuracy",
    "proxy_credit",
    "proxy_rewards",
    "rank_by_proxy",
]
