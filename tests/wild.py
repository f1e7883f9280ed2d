"""The workflow files that people share, and what is right for each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "workflows"


@dataclass(frozen=True)
class Case:
    """A file, the samplers before which the node has to stand, and words of the reason where it declines."""

    file: str
    before: tuple[str, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def read(self) -> dict[str, Any]:
        return json.loads((DATA / self.file).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


CASES = [
    Case("text_to_video_wan.json", ("3",)),
    Case("video_wan2_2_14B_t2v.json", ("128:81", "128:78")),
    Case("official/example_ltxv_ltxv_text_to_video.json", ("72",)),
    Case("official/example_ltxv_ltxv_text_to_video_0.9.5.json", ("72",)),
    Case("official/example_wan22_text_to_video_wan22_14B.json", ("57", "58")),
    Case("official/example_wan22_text_to_video_wan22_5B.json", ("3",)),
    Case("official/example_wan_text_to_video_wan.json", ("3",)),
    Case("official/image_to_video_wan.json", reason="starts from a picture (start_image, clip_vision_output)"),
    Case("official/ltxv_text_to_video.json", ("72",)),
    Case("official/video_ltx2_3_t2v.json", reason="joins video and audio"),
    Case("official/video_wan2_2_5B_ti2v.json", ("3",)),
    Case("community/radialattn__example_workflows_radial_attn.json", reason="starts from a picture (start_image)"),
    Case("community/teacache_wan2.1_t2v.json", reason="TeaCache (#52) is in its MODEL line"),
    Case("community/umeairt__05_LTXV_Base_LTXV_Txt2Video.json", ("135",)),
    Case("community/umeairt__06_WAN_2.1_Base_WAN2.1_Txt2Video.json", reason="Tea Cache (#422:402) is in its MODEL line"),
]
