"""Two experts, without a host: which workflows have the node in one half alone, and a run that changes hands."""

from __future__ import annotations

from typing import Any

import pytest
from carnator.carnator_core.hosts.graph import unfollowed


def halves(second_model: str) -> dict[str, Any]:
    """Two KSamplerAdvanced nodes, one after the other on one latent, each with a loader and perhaps a node of ours."""
    return {
        "1": {"class_type": "UNETLoader", "inputs": {}}, "2": {"class_type": "UNETLoader", "inputs": {}},
        "3": {"class_type": "CarnatorReuse", "inputs": {"model": ["1", 0]}},
        "4": {"class_type": "CarnatorReuse", "inputs": {"model": ["2", 0]}},
        "5": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["3", 0]}},
        "6": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["5", 0], "latent_image": ["9", 0]}},
        "7": {"class_type": "KSamplerAdvanced", "inputs": {"model": [second_model, 0], "latent_image": ["6", 0]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0]}}, "9": {"class_type": "EmptyLatent", "inputs": {}},
    }


@pytest.mark.parametrize(("node", "second_model", "alone"),
                         [("3", "4", False), ("3", "2", True), ("4", "4", False), ("77", "2", False)])
def test_a_first_half_whose_second_does_not_carry_the_node(node: str, second_model: str, alone: bool) -> None:
    assert unfollowed(halves(second_model), node, "CarnatorReuse") == alone


def test_a_first_half_before_a_guider_and_a_latent_node_in_between() -> None:
    graph = halves("4")
    graph["7"]["inputs"] = {"guider": ["10", 0], "latent_image": ["11", 0]}
    graph["10"] = {"class_type": "CFGGuider", "inputs": {"model": ["4", 0]}}
    graph["11"] = {"class_type": "Reroute", "inputs": {"": ["6", 0]}}
    assert not unfollowed(graph, "3", "CarnatorReuse")
    graph["10"]["inputs"]["model"] = ["2", 0]
    assert unfollowed(graph, "3", "CarnatorReuse")
    assert not unfollowed(None, "3", "CarnatorReuse") and not unfollowed(graph, None, "CarnatorReuse")
