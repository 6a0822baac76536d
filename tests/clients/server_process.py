"""Servers of its own for a test: started on free ports, ready, stopped."""

import json
import select
import signal
import subprocess
import tempfile

READY_SECONDS = 60
FREE = "127.0.0.1:0"


class ReadyProcess:
    """A command that says where it listens; `addresses` is what its ready line says."""

    def __init__(self, *command: str):
        self.terminated = False
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline() if readable else ""
        word, _, rest = line.partition(" ")
        if word != "ready":
            self.process.kill()
            raise RuntimeError(f"no ready line but {line!r}; the server said:\n{self.said()}")
        self.addresses = json.loads(rest)

    @property
    def url(self) -> str:
        """Where the HTTP API begins, without "/v1"."""
        return "http://" + self.addresses["http"]

    def said(self) -> str:
        """What the server has logged so far."""
        self.log.seek(0)
        return self.log.read()

    def terminate(self) -> None:
        """Asks the server to finish what runs and end. Once: a second signal would end it at once."""
        if not self.terminated:
            self.process.send_signal(signal.SIGTERM)
        self.terminated = True

    def stop(self) -> int:
        """Ends the server if it still runs; its exit status."""
        self.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()


class ServerProcess(ReadyProcess):
    """`tramontane serve` with the embedded model; `addresses` has "grpc" and "http"."""

    def __init__(self, binary: str, *arguments: str):
        super().__init__(binary, "serve", "--grpc-address", FREE, "--http-address", FREE, *arguments)


class GatewayProcess(ReadyProcess):
    """`tramontane gateway` in front of a server; `addresses` has "http"."""

    def __init__(self, binary: str, backend: str):
        super().__init__(binary, "gateway", "--backend", backend, "--http-address", FREE)
