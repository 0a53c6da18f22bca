"""A scripted server of Gemini's REST API: `gemini_server.py PORT SCRIPT.py…`.

Each script has SCRIPT, {agent name: [rules]}; the agent is known by the name in ADK's identity instruction. Standard
library only.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import scripted_rules
from ledger import write

SCRIPT: dict[str, list[scripted_rules.Rule]] = {}
NAME = re.compile(r'internal name is "([^"]+)"')


def read(body: dict[str, Any]) -> scripted_rules.Seen:
    system = "\n".join(part.get("text", "") for part in body.get("systemInstruction", {}).get("parts", []))
    tools = [item["name"] for tool in body.get("tools", []) for item in tool.get("functionDeclarations", [])]
    config = {key: value for key, value in body.get("generationConfig", {}).items() if "chema" not in key}
    if len(config) != len(body.get("generationConfig", {})):
        config["responseJsonSchema"] = True
    return scripted_rules.Seen(body.get("contents", []), system, tools, config)


def responses(model: str, answer: dict[str, Any], seen: scripted_rules.Seen, stream: bool) -> list[dict[str, Any]]:
    counts = answer.get("usage") or {
        "promptTokenCount": len(seen.everything()) // 40,
        "candidatesTokenCount": 9,
        "totalTokenCount": len(seen.everything()) // 40 + 9,
    }
    pieces: list[list[dict[str, Any]]] = []
    for part in answer["parts"]:
        pieces += (
            [[{**part, "text": text}] for text in scripted_rules.chunks(part["text"])]
            if stream and "text" in part
            else [[part]]
        )
    if not stream:
        pieces = [answer["parts"]]
    made: list[dict[str, Any]] = [
        {"candidates": [{"content": {"role": "model", "parts": piece}, "index": 0}], "modelVersion": model}
        for piece in pieces
    ]
    if "error" in answer:
        made = [
            {
                "promptFeedback": {
                    "blockReason": answer["error"]["code"],
                    "blockReasonMessage": answer["error"]["message"],
                },
                "modelVersion": model,
            }
        ]
    else:
        made[-1]["candidates"][0]["finishReason"] = answer.get("finish", "STOP")
    if "grounding" in answer:
        made[-1]["candidates"][0]["groundingMetadata"] = answer["grounding"]
    made[-1]["usageMetadata"] = counts
    return made


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status: int, message: str) -> None:
        name = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}.get(status, "INTERNAL")
        self.send(
            status,
            "application/json",
            json.dumps({"error": {"code": status, "message": message, "status": name}}).encode(),
        )

    def do_GET(self) -> None:
        self.send(200, "application/json", b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        found = re.search(r"models/([^:/]+):(generateContent|streamGenerateContent)", self.path)
        if not found:
            return self.fail(404, f"not scripted: {self.path}")
        seen = read(body)
        named = NAME.search(seen.system)
        agent = named.group(1) if named else ""
        write(
            {
                "model": agent,
                "system": seen.system,
                "tools": seen.tools,
                "contents": seen.contents,
                "config": seen.config,
            }
        )
        time.sleep(float(os.environ.get("SCRIPTED_DELAY", "0")))
        try:
            answer = scripted_rules.answer(agent, SCRIPT[agent], seen)
        except LookupError as missing:
            return self.fail(400, f"{missing!r}: this agent or request has no rule")
        if "fails" in answer:
            return self.fail(answer["fails"]["status"], answer["fails"]["message"])
        stream = found.group(2) != "generateContent"
        made = responses(found.group(1), answer, seen, stream)
        if not stream:
            return self.send(200, "application/json", json.dumps(made[0]).encode())
        self.send(
            200, "text/event-stream", b"".join(b"data: " + json.dumps(item).encode() + b"\r\n\r\n" for item in made)
        )


def main() -> None:
    for path in sys.argv[2:]:
        SCRIPT.update(runpy.run_path(path)["SCRIPT"])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
