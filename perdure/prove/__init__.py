"""The resume proof: a scenario runs once uninterrupted, then once for every point at which it can be cut.

Here belongs what a proof needs, in users' own suites as well.
"""

from perdure.prove.modes import Cut, Mode
from perdure.prove.outcome import Repeated
from perdure.prove.proof import ALL_MODES, ProofConfig, proof_server, prove
from perdure.prove.report import Report, Verdict
from perdure.prove.scenario import ProofScenario, load_scenario

__all__ = [
    "ALL_MODES",
    "Cut",
    "Mode",
    "ProofConfig",
    "ProofScenario",
    "Repeated",
    "Report",
    "Verdict",
    "load_scenario",
    "proof_server",
    "prove",
]
