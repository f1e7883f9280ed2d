"""What a creator sees: the nodes of the pack."""

from __future__ import annotations

from pathlib import Path

from comfy_api.latest import ComfyExtension, io

from . import routes
from .bank_loader import CarnatorBankLoader
from .bank_report import CarnatorBankReport
from .calibrate import CarnatorCalibrate
from .demo_clip import CarnatorDemoText
from .demo_vae import CarnatorDemoVAE
from .dense_fallback import CarnatorDenseFallback
from .joint_reuse import CarnatorJointReuse
from .probe import CarnatorProbe
from .reuse import CarnatorReuse
from .risk_gate import CarnatorRiskGate
from .search import findable
from .text_encode import CarnatorTextEncode
from .viewer import CarnatorViewer

NODE_CLASS_MAPPINGS = {
    "CarnatorTextEncode": CarnatorTextEncode,
    "CarnatorBankLoader": CarnatorBankLoader,
    "CarnatorEarlySignatureProbe": CarnatorProbe,
    "CarnatorRiskGate": CarnatorRiskGate,
    "CarnatorEvidenceRegionViewer": CarnatorViewer,
    "CarnatorJointReuseSampler": CarnatorJointReuse,
    "CarnatorDenseFallback": CarnatorDenseFallback,
    "CarnatorReuse": CarnatorReuse,
    "CarnatorCalibrate": CarnatorCalibrate,
    "CarnatorDemoTextEncoder": CarnatorDemoText,
    "CarnatorBankReport": CarnatorBankReport,
    "CarnatorDemoVAE": CarnatorDemoVAE,
}


class CarnatorExtension(ComfyExtension):
    """The host's V3 extension object."""

    async def on_load(self) -> None:
        """Show the demo's weights to the host's own loaders; the templates name them."""
        import folder_paths

        weights = str(Path(__file__).resolve().parent.parent / "demo" / "weights")
        for kind in ("diffusion_models", "vae"):
            folder_paths.add_model_folder_path(kind, weights)
        routes.attach()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [findable(node) for node in NODE_CLASS_MAPPINGS.values()]
