"""Twenty people at once, without browsers: python tests/browser/load.py [SECONDS] [PEOPLE]

Each opens the dashboard over its own websocket and picks another sample every 2 seconds. Checked:
that every answer is the metric of the sample that was asked for; measured: how long a rerun takes
until its script has finished, and the server's memory before, with, and after them.
"""

import asyncio
import json
import random
import sys
import time

import numpy as np
import websockets
from conftest import ROOT, serve
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from damcha import gallery, open_run
from damcha.figures.canvas import from_canvas

RUN = ROOT / "checkpoints" / "fashion-damcha"


class Person:
    """One connection: what a browser would send, and what it would see."""

    def __init__(self, number, answers):
        self.random, self.answers = random.Random(number), answers
        self.gallery, self.metric, self.seconds, self.wrong = "", b"", [], 0

    async def rerun(self, pick=None):
        message = BackMsg()
        message.rerun_script.query_string = ""
        if pick is not None:
            own = message.rerun_script.widget_states.widgets.add()
            own.id, own.json_value = self.gallery, "{}"
            state = message.rerun_script.widget_states.widgets.add()
            state.id = f"$$STREAMLIT_INTERNAL_KEY_{self.gallery}__events"  # its triggers
            state.json_trigger_value = json.dumps([{"event": "chosen", "value": pick}])
        await self.socket.send(message.SerializeToString())
        while True:
            answer = ForwardMsg()
            answer.ParseFromString(await asyncio.wait_for(self.socket.recv(), 30))
            element = answer.delta.new_element
            if element.WhichOneof("type") == "bidi_component":
                self.see(element.bidi_component)
            if answer.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY and (
                answer.WhichOneof("type") == "script_finished"
            ):
                return

    def see(self, component):
        if component.component_name.endswith("damcha_gallery"):
            self.gallery = component.id
        elif component.id.endswith("-metric"):
            self.metric = component.bytes

    async def stay(self, address, seconds):
        url = address.replace("http", "ws") + "/_stcore/stream"
        async with websockets.connect(url, max_size=2**26, subprotocols=["streamlit"]) as socket:
            self.socket = socket
            await self.rerun()
            end = time.monotonic() + seconds
            await asyncio.sleep(2 * self.random.random())
            while time.monotonic() < end:
                name = self.random.choice(sorted(self.answers))
                began = time.perf_counter()
                await self.rerun(name)
                took = time.perf_counter() - began
                self.seconds.append(took)
                (shown, *_), *_ = from_canvas(self.metric)[1]
                self.wrong += not np.allclose(shown, self.answers[name], rtol=1e-5, atol=1e-7)
                await asyncio.sleep(max(0.0, 2 - took))


def memory(pid):
    """Resident memory of a process and its children, in MB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


async def main(seconds, people):
    run = open_run(RUN)
    answers = {
        path.name: gallery.open_subject(run, None, path, device="cpu").metric()
        for path in run.samples
    }
    with serve(ROOT / "app" / "main.py", RUN.parent) as address:
        import psutil

        pid = next(
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == "LISTEN"
            and connection.laddr.port == int(address.rpartition(":")[2])
        )
        first = Person(-1, answers)
        await first.stay(address, 8)
        await asyncio.sleep(3)
        before = memory(pid)
        crowd = [Person(k, answers) for k in range(people)]
        staying = asyncio.gather(*(person.stay(address, seconds) for person in crowd))
        await asyncio.sleep(seconds * 0.8)
        during = memory(pid)
        await staying
        await asyncio.sleep(150 if seconds > 60 else 5)
        after = memory(pid)
    times = np.array([took for person in crowd for took in person.seconds])
    wrong = sum(person.wrong for person in crowd)
    print(f"{people} people, {len(times)} reruns, {wrong} wrong figures")
    print(f"rerun: median {np.median(times):.3f} s, 95 % {np.quantile(times, 0.95):.3f} s (0.2 s)")
    print(f"memory: {before:.0f} MB before, {during:.0f} MB with them "
          f"({(during - before) / people:.1f} MB each; 5), {after:.0f} MB after")  # fmt: skip


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    asyncio.run(main(*numbers, *(120, 20)[len(numbers) :]))
