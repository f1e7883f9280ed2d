"""Put Carnator into a workflow that exists: the UI's file or a prompt of the API's form.

python3 run.py adopt FILE.json [--out FILE] [--text] [--anyway]
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from .insert import into_prompt, into_workflow, swap_text
from .lines import OURS, Finding, Flow, findings
from .wires import GraphError

LARGEST = 64 * 2**20  # bytes of a workflow file; the largest that people share have one


class AdoptError(ValueError):
    """What is wrong with a file, in one sentence."""


@dataclass
class Adopted:
    """What became of a workflow. workflow: the changed one, or None when nothing was changed; the rest are sentences."""

    workflow: dict[str, Any] | None
    done: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(text: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises AdoptError in one sentence."""
    def refuse(name: str) -> NoReturn:
        raise AdoptError(f"it holds {name}, which is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise AdoptError(f"it is not JSON ({error.msg} in line {error.lineno})") from error
    except RecursionError as error:
        raise AdoptError("it is nested too deeply to be a workflow") from error
    except ValueError as error:
        if isinstance(error, AdoptError):
            raise
        raise AdoptError(f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise AdoptError(f"it holds a {_name(value)}, not a workflow")
    return value


def adopt(workflow: dict[str, Any], text: bool = False, anyway: bool = False) -> Adopted:
    """Put Carnator Reuse before every sampler that it serves, in a copy.

    text: make the positive prompts' encoders Carnator Text Encode. anyway: put it in also where it would step aside.
    Raises AdoptError for what is no workflow.
    """
    whole = copy.deepcopy(workflow)
    form = _form(whole)
    try:
        return _adopt(whole, None if form == "ui" else whole["prompt"] if form == "wrapped" else whole, text, anyway)
    except GraphError as error:
        raise AdoptError(str(error)) from error
    except RecursionError as error:
        raise AdoptError("its wires run in a circle") from error
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        # What the checks do not look at: anything may stand in a file of another hand.
        raise AdoptError(f"a part of it is not as in a workflow ({type(error).__name__}: {error})") from error


def _adopt(whole: dict[str, Any], prompt: dict[str, Any] | None, text: bool, anyway: bool) -> Adopted:
    """Change `whole` in place. prompt: the part of it in the API's form, None in a file of the UI."""
    flow = Flow.of_ui(whole) if prompt is None else Flow.of_api(prompt)
    found = findings(flow)
    served = [f for f in found if not f.reason]
    entered = [f for f in found if not f.reason or anyway and f.consumer.models and not _ours(flow, f)]
    declined = [f"{f.sampler}: {f.reason}" for f in found if f.reason]
    if not found:
        declined.append(_nothing(flow))
    if not entered:
        return Adopted(None, declined=declined)
    done = into_workflow(whole, entered) if prompt is None else into_prompt(prompt, entered)
    if text:
        done += swap_text(entered, prompt)
    notes = [f"{f.sampler}: {n}" for f in served for n in f.notes]
    return Adopted(whole, done, declined, notes)


def _ours(flow: Flow, finding: Finding) -> bool:
    return any(n.kind == OURS for n in flow.upstream(finding.consumer, lambda n: n.models))


def _nothing(flow: Flow) -> str:
    if not flow.nodes:
        return "nothing in it runs: every node is muted or bypassed, or there is none"
    others = sorted({n.kind for n in flow.nodes.values() if n.models and "sampl" in n.kind.lower() and "Model" not in n.kind})
    known = "KSampler, KSamplerAdvanced, SamplerCustom or SamplerCustomAdvanced"
    return f"no {known} runs in it" + (f" (it samples with {', '.join(others)})" if others else "")


def _name(value: Any) -> str:
    return {list: "list", str: "text", bool: "truth value", type(None): "null"}.get(type(value), "number")


def _form(workflow: dict[str, Any]) -> str:
    """ "ui", "api", or "wrapped" (a prompt as it is posted). Raises AdoptError, also for parts that are not as they must be."""
    if isinstance(workflow.get("nodes"), list):
        _check_ui(workflow)
        return "ui"
    wrapped = isinstance(workflow.get("prompt"), dict)
    prompt = workflow["prompt"] if wrapped else workflow
    if not prompt or not all(isinstance(n, dict) and isinstance(n.get("class_type"), str) for n in prompt.values()):
        raise AdoptError("it is neither a workflow of the UI (with nodes and links) nor of the API (with a class_type per node)")
    for key, entry in prompt.items():
        if not isinstance(entry.setdefault("inputs", {}), dict):
            raise AdoptError(f"the inputs of node {key} are not an object")
        if not isinstance(entry.get("_meta") or {}, dict):
            raise AdoptError(f"the _meta of node {key} is not an object")
    return "wrapped" if wrapped else "api"


def _check_ui(workflow: dict[str, Any]) -> None:
    definitions = workflow.get("definitions") or {}
    subgraphs = definitions.get("subgraphs") or [] if isinstance(definitions, dict) else None
    if not isinstance(subgraphs, list) or not all(isinstance(s, dict) and isinstance(s.get("id"), str) for s in subgraphs):
        raise AdoptError("its sub-graphs are not a list of objects with an id each")
    kinds = {s["id"]: s for s in subgraphs}
    for body in (workflow, *subgraphs):
        where = f"the sub-graph {body.get('name') or body['id']}" if body is not workflow else "it"
        for name in ("nodes", "links", *(("inputs", "outputs") if body is not workflow else ())):
            if not isinstance(body.setdefault(name, []), list):
                raise AdoptError(f"in {where}, {name} is not a list")
        borders = [*body["inputs"], *body["outputs"]] if body is not workflow else []
        if not all(isinstance(b, dict) and isinstance(b.get("name"), str) and isinstance(b.get("type"), str) for b in borders):
            raise AdoptError(f"in {where}, an input or output has no name or type")
        for node in body["nodes"]:
            _check_node(node, where)
        numbers = {n["id"]: n for n in body["nodes"]}
        if len(numbers) < len(body["nodes"]):
            raise AdoptError(f"in {where}, two nodes have the same id")
        for link in body["links"]:
            _check_link(link, numbers, body if body is not workflow else None, where)
    for node in (n for b in (workflow, *subgraphs) for n in b["nodes"] if n["type"] in kinds):
        if len(node["outputs"]) < len(kinds[node["type"]]["outputs"]):
            raise AdoptError(f"node {node['id']} has fewer outputs than the sub-graph that it stands for")


def _check_node(node: Any, where: str) -> None:
    if not isinstance(node, dict) or type(node.get("id")) not in (int, str) or not isinstance(node.get("type"), str):
        raise AdoptError(f"in {where}, a node has no id or no type")
    for name in ("inputs", "outputs"):
        if node.get(name) is None:
            node[name] = []
        if not isinstance(node[name], list) or not all(isinstance(e, dict) and isinstance(e.get("name"), str) for e in node[name]):
            raise AdoptError(f"in {where}, the {name} of node {node['id']} are not a list of named slots")
        for entry in node[name]:
            entry.setdefault("type", "*")
            if type(entry.get("link")) not in (int, str, type(None)):
                raise AdoptError(f"in {where}, a wire of node {node['id']} has no number")
    if not isinstance(node.get("properties") or {}, dict):
        raise AdoptError(f"in {where}, the properties of node {node['id']} are not an object")
    if not isinstance(node.get("widgets_values") or [], list | dict):
        raise AdoptError(f"in {where}, the values of node {node['id']} are neither a list nor an object")


def _check_link(link: Any, nodes: dict[Any, Any], body: dict[str, Any] | None, where: str) -> None:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    whole = isinstance(link, dict) and all(n in link for n in names) or isinstance(link, list) and len(link) >= 6
    values = [link[n] if isinstance(link, dict) else link[i] for i, n in enumerate(names)] if whole else []
    if not whole or any(type(v) not in (int, str) for v in values) or type(values[2]) is not int or type(values[4]) is not int:
        raise AdoptError(f"in {where}, a wire is not written as [id, from, slot, to, slot, type]")
    number, origin, slot, target, _ = values
    if body is not None and origin == -10:
        present = 0 <= slot < len(body["inputs"])
    else:
        present = origin in nodes and 0 <= slot < len(nodes[origin]["outputs"])
    if not present or target not in nodes and not (body is not None and target == -20):
        raise AdoptError(f"in {where}, wire {number} leads from or to a node that is not there")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when a changed workflow was written, 1 when Carnator does not serve this one, 2 for a wrong call or file."""
    parser = argparse.ArgumentParser(
        prog="run.py adopt", allow_abbrev=False,
        description="Puts Carnator Reuse into a workflow file, between the model (after LoRA and shift nodes) and each sampler "
                    "that it serves, and says what it did; or why it will not, and then writes nothing. Takes files of the UI "
                    "and of the API. Needs no ComfyUI.")
    parser.add_argument("file", metavar="FILE.json", help="the workflow")
    parser.add_argument("--out", metavar="FILE", help="where the changed one goes (default: FILE_carnator.json beside it)")
    parser.add_argument("--text", action="store_true", help="also make the positive prompt's encoder a Carnator Text Encode")
    parser.add_argument("--anyway", action="store_true", help="put it in also where it would step aside when it runs")
    options = parser.parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    path = Path(options.file)
    try:
        if path.stat().st_size > LARGEST:
            raise AdoptError(f"it has {path.stat().st_size / 2**20:.0f} MB, and no workflow is that large")
        result = adopt(read(path.read_text(encoding="utf-8-sig")), options.text, options.anyway)
    except UnicodeDecodeError:
        return _fail(path, "it is not UTF-8 text")
    except OSError as error:
        return _fail(path, f"it cannot be read ({error.strerror or error})")
    except AdoptError as error:
        return _fail(path, str(error))
    for line in result.done:
        print(line)
    for line in result.notes:
        print(f"  note: {line}")
    for line in result.declined:
        print(f"{'Carnator will step aside' if result.workflow is not None and options.anyway else 'Not put in'}: {line}")
    if result.workflow is None:
        print("Nothing was written: the workflow stays as it is.")
        return 1
    out = Path(options.out) if options.out else path.with_name(path.stem + "_carnator.json")
    try:
        out.write_text(json.dumps(result.workflow, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        return _fail(out, f"it cannot be written ({error})")
    print(f"Written: {out}")
    return 0


def _fail(path: Path, reason: str) -> int:
    print(f"carnator: {path}: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
