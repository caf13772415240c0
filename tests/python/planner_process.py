"""bin/relibra-planner as a process of its own."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RELIBRA_BUILD_DIR", REPOSITORY / "build" / "release"))
BINARY = BUILD / "bin" / "relibra-planner"


class PlannerProcess:
    """Serves on a port of loopback, a free one if none is given, until it is stopped."""

    def __init__(self, *flags, port=0):
        self.log = []
        self.process = subprocess.Popen(
            [BINARY, f"--listen=127.0.0.1:{port}", "--metrics-address", "", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in self.process.stdout:
            self.log.append(line)
            if serving := re.search(r"event=serving .*\bport=(\d+)", line):
                break
        else:
            raise RuntimeError(f"{BINARY} did not serve:\n{''.join(self.log)}")
        self.port = int(serving[1])
        self.address = f"127.0.0.1:{self.port}"
        # Reads on, so that the planner never waits for its log to be read.
        self._reader = threading.Thread(
            target=self.log.extend, args=(self.process.stdout,), daemon=True
        )
        self._reader.start()

    def _end(self, number):
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self._reader.join()
        self.process.stdout.close()
        return status

    def stop(self):
        return self._end(signal.SIGTERM)

    def kill(self):
        return self._end(signal.SIGKILL)
