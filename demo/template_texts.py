"""What stands in the templates: the prompts of ComfyUI's own ones, and the notes on the canvas."""

from __future__ import annotations

# The negative prompt of ComfyUI's Wan templates, which is Wan's own.
WAN_NEGATIVE = (
    "\u8272\u8c03\u8273\u4e3d\uff0c\u8fc7\u66dd\uff0c\u9759\u6001\uff0c\u7ec6\u8282\u6a21\u7cca\u4e0d\u6e05\uff0c"
    "\u5b57\u5e55\uff0c\u98ce\u683c\uff0c\u4f5c\u54c1\uff0c\u753b\u4f5c\uff0c\u753b\u9762\uff0c\u9759\u6b62\uff0c"
    "\u6574\u4f53\u53d1\u7070\uff0c\u6700\u5dee\u8d28\u91cf\uff0c\u4f4e\u8d28\u91cf\uff0cJPEG\u538b\u7f29\u6b8b"
    "\u7559\uff0c\u4e11\u964b\u7684\uff0c\u6b8b\u7f3a\u7684\uff0c\u591a\u4f59\u7684\u624b\u6307\uff0c\u753b\u5f97"
    "\u4e0d\u597d\u7684\u624b\u90e8\uff0c\u753b\u5f97\u4e0d\u597d\u7684\u8138\u90e8\uff0c\u7578\u5f62\u7684\uff0c"
    "\u6bc1\u5bb9\u7684\uff0c\u5f62\u6001\u7578\u5f62\u7684\u80a2\u4f53\uff0c\u624b\u6307\u878d\u5408\uff0c\u9759"
    "\u6b62\u4e0d\u52a8\u7684\u753b\u9762\uff0c\u6742\u4e71\u7684\u80cc\u666f\uff0c\u4e09\u6761\u817f\uff0c\u80cc"
    "\u666f\u4eba\u5f88\u591a\uff0c\u5012\u7740\u8d70"
)
WAN21_POSITIVE = "a fox moving quickly in a beautiful winter scenery nature trees mountains daytime tracking camera"
WAN22_POSITIVE = (
    "Low contrast. In a retro 1970s-style subway station, a street musician plays in dim colors and rough textures. He "
    "wears an old jacket, playing guitar with focus. Commuters hurry by, and a small crowd gathers to listen. The "
    "camera slowly moves right, capturing the blend of music and city noise, with old subway signs and mottled walls "
    "in the background."
)
WAN22_14B_POSITIVE = (
    "A sailboat glides over a calm bay at sunset. The camera follows it slowly from the side; hills stand in the "
    "background, and the water mirrors the orange sky."
)
LTX_POSITIVE = (
    "A woman with long brown hair and light skin smiles at another woman with long blonde hair. The woman with brown "
    "hair wears a black jacket and has a small, barely noticeable mole on her right cheek. The camera angle is a "
    "close-up, focused on the woman with brown hair's face. The lighting is warm and natural, likely from the setting "
    "sun, casting a soft glow on the scene. The scene appears to be real-life footage."
)
LTX_NEGATIVE = (
    "low quality, worst quality, deformed, distorted, disfigured, motion smear, motion artifacts, fused fingers, bad "
    "anatomy, weird hand, ugly"
)
DEMO_POSITIVE = "a red ball moving right on snow"

DEMO_WORDS = """\
**Words this small model knows**

- things: ball, cube, star, ring, cross, triangle (one, two of a kind, or two joined by *and*)
- colours: red, orange, yellow, green, cyan, blue, purple, pink
- sizes: small, big
- places: on snow, on grass, on sand, on water, at night
- movement: moving left, moving right, moving up, moving down

It is tiny, ships with the pack and draws 9 frames of 128 x 128 pixels; nothing is downloaded."""

DEMO_GUIDE = """\
## Carnator, stage by stage

Press **Run**: the first clip is rendered in full and remembered.

Change one word of the prompt, *ball* to *cube* or *red* to *blue*, and press **Run** again: when the Risk Gate \
finds a remembered clip that is a safe start, only what differs is computed.

The panels on *Risk Gate*, *Joint Reuse Sampler* and *Dense Fallback* say what happened, why, and what it saved."""

ONE_NODE_GUIDE = """\
## Carnator in one node

This is an ordinary graph with **Carnator Reuse** put into the MODEL line: press **Run**, and the first clip is \
rendered in full and remembered.

Change one word of the prompt, *ball* to *cube* or *red* to *blue*, and press **Run** again: when a remembered clip \
is a safe start, only what differs is computed.

The panel on the node says what happened, why, and what it saved; bypass the node (Ctrl+B) and nothing of it remains."""

CALIBRATE_GUIDE = """\
## Thresholds of your own

**Carnator Calibrate** chooses the gate's thresholds from pairs of renders that somebody judged, and certifies them on \
pairs that took no part in the choice. The panel says what they are worth, and how many pairs are missing.

The lines in *pairs* are examples of the form and nothing more: press **Run** to see the report, then put your own in \
their place, or empty the field and let your verdicts on this bank's reuses (*kept the scene*, *wrong scene*) speak. \
Name your own bank, and its budget, in *Cache Bank Loader* first.

Write the profile's name into *profile* of **Carnator Reuse** or **Risk Gate** to use it."""

EXAMPLE_PAIRS = "\n".join(
    f'{{"request": "example {number}", "distances": {{"colour": {colour}, "motion": {motion}, "change": {change}}}, '
    f'"safe": {safe}}}'
    for number, (colour, motion, change, safe) in enumerate(
        [
            (2.0, 0.01, 0.08, "true"),
            (4.5, 0.02, 0.15, "true"),
            (6.0, 0.03, 0.12, "true"),
            (9.0, 0.02, 0.22, "true"),
            (11.0, 0.05, 0.30, "true"),
            (14.0, 0.04, 0.26, "true"),
            (19.0, 0.11, 0.55, "false"),
            (26.0, 0.14, 0.60, "false"),
            (33.0, 0.20, 0.71, "false"),
            (40.0, 0.09, 0.83, "false"),
        ],
        1,
    )
)

REAL_STAGES_GUIDE = """\
## {name}, stage by stage

This is ComfyUI's own template with Carnator's stages in place of KSampler, and **Carnator Text Encode** in place of the \
positive CLIP Text Encode: press **Run**, and the first clip is rendered in full and remembered.

Change a word or two of the prompt, keep size and seed, and press **Run** again: when the Risk Gate finds a \
remembered clip that is a safe start, only what differs is computed.

*Evidence Region Viewer* shows both clips side by side, and what was compared."""

EXPERTS_GUIDE = """\
## {name} with Carnator

This is ComfyUI's own template for the two experts, without its four-step LoRAs (so few steps leave nothing to save), \
with **Carnator Reuse** before both: a history spans the two, so keep the nodes in both MODEL lines.

Press **Run**, and the first clip is rendered in full and remembered. Change a word or two of the prompt, keep size, \
steps and seed, and press **Run** again.

The panels on the nodes say what happened, and why; when Carnator steps aside, the render is exactly the one you would \
get without it."""

EXPERTS_STAGES_GUIDE = """\
## {name}, stage by stage

This is ComfyUI's own template for the two experts, without its four-step LoRAs, with Carnator's stages in place of both \
samplers: *Early Signature Probe* takes the low-noise expert too, from *switch step* on. Press **Run**, and the first clip \
is rendered in full and remembered.

Change a word or two of the prompt, keep size, steps and seed, and press **Run** again: when the Risk Gate finds a \
remembered clip that is a safe start, only what differs is computed.

*Evidence Region Viewer* shows both clips side by side, and what was compared."""

REAL_GUIDE = """\
## {name} with Carnator

This is ComfyUI's own template with **Carnator Reuse** put into the MODEL line and **Carnator Text Encode** in place \
of the positive CLIP Text Encode: press **Run**, and the first clip is rendered in full and remembered.

Change a word or two of the prompt, keep size and seed, and press **Run** again: when a remembered clip is a \
safe start, only what differs is computed.

The panel on the node says what happened, why, and what it saved; when it declines, the render is exactly the one \
you would get without it."""
