"""Both sides of a job of NVIDIA FLARE's that exchanges frames, and how its simulator runs it.

`python benchmarks/carriers.py` runs it, and has its times beside others'.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from carriers import answer, asked

try:
    from nvflare.collab import collab
except ModuleNotFoundError:
    if __name__ != "__main__":
        raise
    sys.exit(f"{__doc__}\nThat takes the extra: pip install 'securefl[nvflare]'")

from securefl.nvflare.calls import ByCalls, CalledHere
from securefl_cli.nvflare_job import Published, ServersCalls


class MeasuringServer(Published):
    """Server's side of the job: asks all sites at once, and writes the medians down."""

    def __init__(self, folder: str, sizes: Sequence[int]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.sizes = sizes

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Measure."""
        here = CalledHere(self.listens)
        found = asyncio.run(asked(self.folder, here, self.sizes, lambda _: None))
        (self.folder / "found.json").write_text(json.dumps(found))


class AnsweringSite:
    """A site's side of the job: answers with as many bytes as come."""

    def __init__(self, folder: str, sizes: Sequence[int]) -> None:
        self.folder = Path(folder)
        self.sizes = sizes

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Call the server, in a thread of its own."""
        to = ByCalls(ServersCalls())
        work = answer(self.folder, collab.site_name, to, max(self.sizes))
        Thread(target=asyncio.run, args=(work,), daemon=True).start()


def over_nvflare(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> dict[int, float]:
    """Return the milliseconds of an exchange over NVIDIA FLARE, the median, by its size."""
    args = {"folder": str(folder), "sizes": list(sizes)}
    runtime, app = "nvflare.collab.runtime", folder / "job/app/config"
    controller = {"path": f"{runtime}.controller.CollabController", "id": "controller"}
    executor = {"path": f"{runtime}.executor.CollabExecutor", "args": {"client_obj_id": "own"}}
    files = {
        folder / "job/meta.json": {
            "name": "calls",
            "resource_spec": {},
            "min_clients": len(names),
            "deploy_map": {"app": ["@ALL"]},
        },
        app / "config_fed_server.json": {
            "format_version": 2,
            "workflows": [controller | {"args": {"server_obj_id": "own"}}],
            "components": [{"id": "own", "path": "nvflare_calls.MeasuringServer", "args": args}],
        },
        app / "config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "own", "path": "nvflare_calls.AnsweringSite", "args": args}],
        },
    }
    app.mkdir(parents=True)
    for path, content in files.items():
        path.write_text(json.dumps(content))
    resources = {"format_version": 2, "class_allow_list": ["nvflare_calls.", f"{runtime}."]}
    command: list[str | Path] = [Path(sys.executable).parent / "nvflare", "simulator"]
    command += [folder / "job", "-w", folder / "work", "-c", ",".join(names)]
    local = folder / "work/local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text(json.dumps(resources))
    with (folder / "simulator.log").open("wb") as log:
        subprocess.run([*command, "-t", str(len(names))], stdout=log, stderr=log, check=False)
    found = folder / "found.json"
    if not found.exists():
        raise SystemExit((folder / "simulator.log").read_text()[-4000:])
    return {int(size): ms for size, ms in json.loads(found.read_text()).items()}


if __name__ == "__main__":
    print(__doc__)
