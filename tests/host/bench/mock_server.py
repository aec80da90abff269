"""A completions server with a known schedule, for measuring the measurer. Run as a script: prints its port.

The model's name says how it behaves; a first path segment (``/quiet``, ``/busy``, ``/lagging``,
``/elsewhere``) says what its counters show. Times are kept on an absolute schedule, so that sending late
once does not shift what follows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from deployer.bench.load.prompts import estimate

TTFT = 0.2
ITL = 0.02
SLOW = 300.0


class Server:
    def __init__(self) -> None:
        self.generated = 0
        self.reads = 0
        self.active = 0
        self.seen: list[dict[str, Any]] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.request(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        if method == "GET":
            await self.get(path, writer)
            return
        text = await reader.readexactly(int(headers["content-length"]))
        arrived = asyncio.get_running_loop().time()
        body = json.loads(text)
        self.seen.append({"headers": headers, "body": body})
        ours = path.startswith("/quiet/")  # not what earlier tests left hanging
        self.active += ours
        try:
            await self.complete(body, headers, writer, arrived)
        finally:
            self.active -= ours

    async def get(self, path: str, writer: asyncio.StreamWriter) -> None:
        status, text = 404, ""
        if path == "/seen":
            status, text = 200, json.dumps(self.seen)
            self.seen = []
        elif path.endswith("/metrics") and path != "/metrics":
            self.reads += 1
            shown = {
                "/quiet": self.generated,
                "/busy": self.generated + 100 * self.reads,
                "/elsewhere": 7,
            }[path.removesuffix("/metrics")]
            status = 200
            text = "# TYPE sglang:generation_tokens_total counter\n"
            text += f'sglang:generation_tokens_total{{model_name="m",tp_rank="0"}} {float(shown)}\n'
        elif path == "/quiet/v1/loads":
            load = {"num_running_reqs": self.active, "num_waiting_reqs": 0, "token_usage": 0.25}
            status, text = 200, json.dumps({"loads": [load]})
        reply = f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n{text}"
        writer.write(reply.encode())
        await writer.drain()

    async def complete(
        self, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter, arrived: float
    ) -> None:
        kind, n = body["model"], body["max_tokens"]
        loop = asyncio.get_running_loop()

        async def until(moment: float) -> None:
            await asyncio.sleep(max(0.0, moment - loop.time()))

        def send(data: bytes) -> None:
            if writer.is_closing():
                raise ConnectionResetError("the client has closed the connection")
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        def event(document: object) -> bytes:
            return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"

        def chunk(text: str) -> bytes:
            return event({"choices": [{"index": 0, "text": text, "finish_reason": None}], "usage": None})

        if kind == "mixed":  # every third request fails
            kind = "http-500" if len(self.seen) % 3 == 0 else "fast"
        if kind.startswith("http-"):
            text = f'{{"error": "no, {headers.get("authorization", "")}"}}'
            writer.write(f"HTTP/1.1 {kind[5:]} X\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
            await writer.drain()
            return
        if kind == "not-http":
            writer.write(b"what?\r\n\r\n")
            await writer.drain()
            return
        if kind == "close":
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if kind == "hang":
            await writer.drain()
            await asyncio.sleep(SLOW)
            return
        quick = kind in (
            "fast",
            "warm",
            "no-usage",
            "short",
            "empty",
            "repeat",
            "error",
            "garbage",
            "split",
            "reset",
        )
        ttft, itl = (0.02, 0.001) if quick else (TTFT, ITL)
        per = 4 if kind == "four" else 1
        made = n - 3 if kind == "short" else n
        for i in range(0, made, per):
            await until(arrived + ttft + itl * i)
            count = min(per, made - i)
            text = "!" * count if kind == "repeat" else "".join(f" w{i + k}é" for k in range(count))
            if kind == "empty":
                text = ""
            data = chunk(text)
            if kind == "split":
                for at in range(0, len(data), 5):
                    send(data[at : at + 5])
                    await writer.drain()
                    await asyncio.sleep(0)
                continue
            send(data)
            if i == 5 and kind == "reset":
                await writer.drain()
                writer.transport.abort()
                return
            if i == 5 and kind == "garbage":
                send(b"data: {nonsense\n\n")
            if i == 5 and kind == "error":
                send(event({"error": {"message": "out of memory"}}))
        self.generated += made
        if kind != "no-usage":
            asked = round(2 * estimate(body["prompt"]))
            send(event({"choices": [], "usage": {"completion_tokens": made, "prompt_tokens": asked}}))
        send(b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def main() -> None:
    server = await asyncio.start_server(Server().handle, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent goes


if __name__ == "__main__":
    asyncio.run(main())
