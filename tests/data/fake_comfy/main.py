"""Stands in for ComfyUI's server in tests/test_setup.py: the few routes the client uses, answered at once."""

from __future__ import annotations

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAILURE = {"node_type": "KSampler", "node_id": "3", "exception_message": "the latent is of another family\n"}
HISTORY = {
    "good": {"status": {"status_str": "success", "messages": []}, "outputs": {"9": {"images": []}}},
    "bad": {"status": {"status_str": "error", "messages": [["execution_error", FAILURE]]}, "outputs": {}},
    "stopped": {"status": {"status_str": "error", "messages": [["execution_interrupted", {}]]}, "outputs": {}},
}
REFUSAL = {
    "error": {"message": "Prompt outputs failed validation", "details": ""},
    "node_errors": {
        "4": {"class_type": "UNETLoader", "errors": [{"message": "Value not in list", "details": "unet_name: 'x'"}]}
    },
}


class Routes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/system_stats":
            self.answer(200, {"pid": os.getpid()})
        elif self.path.startswith("/history/"):
            name = self.path.rpartition("/")[2]
            self.answer(200, {name: HISTORY[name]} if name in HISTORY else {})
        elif self.path == "/object_info":
            self.answer(200, {"KSampler": {}})
        else:
            self.answer(404, {"error": "nothing here"})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/prompt" and not sent["prompt"]:
            self.answer(400, REFUSAL)
        else:
            self.answer(200, {"prompt_id": "good"})

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("--listen", "--base-directory", "--database-url"):
        parser.add_argument(flag)
    parser.add_argument("--port", type=int)
    for flag in ("--cpu", "--disable-api-nodes", "--disable-auto-launch", "--fail"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.fail:
        raise SystemExit("\x1b[31mno room for the model\x1b[0m")
    ThreadingHTTPServer((options.listen, options.port), Routes).serve_forever()
