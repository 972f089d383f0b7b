"""The Open Inference Protocol, with stubs made from the .proto file.

Apart from harness.py, because other clients of this protocol bring messages of
the same names.
"""

import harness  # makes the stubs  # noqa: F401
from inference import inference_pb2 as oip
from inference import inference_pb2_grpc


def stub(channel):
    return inference_pb2_grpc.GRPCInferenceServiceStub(channel)


__all__ = ["oip", "stub"]
