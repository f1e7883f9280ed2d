"""Carnator Calibrate: thresholds chosen on labelled pairs and certified on others, as a profile."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.calibrate import ALPHA, CONFIDENCE, calibrate, only, pairs_of, read_pairs, tolerances_of
from ..carnator_core.verdicts import labels
from . import banks, profiles
from .status import speaker, written
from .types import BankHandle, BankType, advanced


class CarnatorCalibrate(io.ComfyNode):
    """Labelled pairs, a bank's verdicts -> a profile, saved by name and as JSON text, and a report."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorCalibrate", display_name="Carnator Calibrate", category="Carnator",
            description="Chooses the gate's thresholds from pairs of renders labelled safe or unsafe, and certifies them on "
                        "pairs that took no part in the choice. Your own verdicts on reuses count as labels.",
            inputs=[
                io.String.Input("profile", default="my profile", tooltip="The name to save the profile under."),
                io.String.Input("pairs", default="", multiline=True, tooltip="Labelled pairs: the name of a file in the user folder, or JSON lines."),
                io.Float.Input("risk", default=ALPHA, min=0.0, max=0.5, step=0.005, tooltip="Largest share of unsafe reuses when the thresholds are chosen."),
                io.Float.Input("confidence", default=CONFIDENCE, min=0.5, max=0.999, step=0.005, tooltip="How sure the certified bound has to be."),
                BankType.Input("bank", optional=True, tooltip="Your verdicts on this bank's reuses are added to the pairs."),
                *advanced(
                    io.String.Input("tolerances", default="", tooltip="What a reuse may lose against a full render, by metric: alignment=0.05, psnr=1."),
                    io.String.Input("model", default="", tooltip="Only pairs of this model, where there are several."),
                    io.String.Input("shape", default="", tooltip="Only pairs of this latent shape, where there are several."),
                    io.String.Input("mode", default="", tooltip="Only pairs of this mode of reuse, where there are several."),
                    io.Int.Input("split_seed", default=0, min=0, max=0xFFFFFFFF, tooltip="Which half chooses and which certifies."),
                ),
            ],
            outputs=[io.String.Output(display_name="calibrated"), io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, profile: str = "", **_: Any) -> bool | str:
        return banks.check_name(profile).replace("bank name", "profile name") or True

    @classmethod
    def fingerprint_inputs(cls, pairs: str = "", **_: Any) -> str:
        return str(profiles.stamps(pairs))

    @classmethod
    def execute(cls, profile: str, pairs: str, risk: float, confidence: float, tolerances: str = "", model: str = "",
                shape: str = "", mode: str = "", split_seed: int = 0, bank: BankHandle | None = None) -> io.NodeOutput:
        try:
            rows = read_pairs(profiles.read_pairs(pairs))
            rows += pairs_of(labels(bank.bank.folder)) if bank is not None else []
            found, report = calibrate(only(rows, model, shape, mode), profile, risk, confidence, tolerances_of(tolerances),
                                      split_seed)
            where = profiles.write(found)
        except (ValueError, OSError) as error:
            raise RuntimeError(f"no profile was made: {error}") from error
        report += f"\nsaved as {where.name}: name it in Risk Gate or Carnator Reuse"
        speaker(cls.hidden.unique_id)(report)
        return io.NodeOutput(found.to_json(), report, ui=written(cls.hidden.unique_id, report))
