"""The Python stubs of the service, compiled from the .proto as any user would."""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTO = "proto/tramontane/v1/inference.proto"


def import_stubs():
    """The modules of messages and of services."""
    folder = tempfile.mkdtemp(prefix="tramontane-stubs-")
    status = protoc.main(
        ["protoc", f"-I{ROOT}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(ROOT / PROTO)]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with {status}")
    sys.path.insert(0, folder)
    from proto.tramontane.v1 import inference_pb2, inference_pb2_grpc

    return inference_pb2, inference_pb2_grpc
